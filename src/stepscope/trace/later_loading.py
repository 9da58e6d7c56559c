"""How long the steps after a recording waited for their batches.

While a recorder starts, workers go on: the recorded steps may find batches that are ready, and wait
for none. The steps after the recording, timed by the clocks of the run, wait as all others do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class LaterLoading(NamedTuple):
    """Means per step after the recording, where the longest wait counts as the next longest."""

    ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """The share of the step that loads or waits for data."""
        return self.ms / self.step_ms if self.step_ms else 0.0


def later_loading(capture: Mapping[str, Any]) -> LaterLoading | None:
    """Loading of data in the steps after the recording.

    Args:
        capture: the manifest of a capture.

    Returns:
        None where it was not measured, as in JAX and by earlier versions.
    """
    parts = (capture.get("unrecorded_steps") or {}).get("parts") or {}
    times = {name: part.get("recurring_ns") for name, part in parts.items()}
    if times.get("data_loading") is None or None in times.values():
        return None
    return LaterLoading(times["data_loading"] / 1e6, sum(times.values()) / 1e6)
