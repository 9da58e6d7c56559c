"""The data that a page or an editor shows for one entry file."""

from __future__ import annotations

from typing import Any

from stepscope.batch_size.curve import curve
from stepscope.batch_size.device_memory import usable_bytes
from stepscope.batch_size.entry_result import Result
from stepscope.batch_size.suggestions import suggestions


def batch_answer(result: Result, capacity: float | None = None) -> dict[str, Any]:
    """The data that the page shows for one entry file.

    Args:
        result: of profiling it.
        capacity: bytes that a step may take; by default the device's memory.

    Returns:
        As `stepscope batch --json`, with `now` (the prediction at the present batch size),
        `suggestions`, `curve` (predictions to choose from) and `capacity`.
    """
    profile, batch = result.profile, result.entry.batch
    capacity = capacity or usable_bytes(profile.device)
    return {
        **result.to_json(),
        "sentence": result.entry.site.sentence,
        "capacity": capacity,
        "now": profile.predict(batch),
        "suggestions": suggestions(profile, batch, capacity),
        "curve": curve(profile, batch, result.breakdown, capacity),
    }
