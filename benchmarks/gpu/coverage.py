"""How much of a capture's work stepscope finds a stage and a module for.

    python -m benchmarks.gpu.coverage CAPTURE …

Work is what the device does, by its length; in a capture without a device, what operators do, by
their own time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepscope
from stepscope.base.arrays import Ids
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Json = dict[str, Any]
_EARLIER = "launched_before_recording"
_OF_THE_MODEL = ("forward", "backward")


def coverage(path: Path) -> Json:
    """Shares of the recorded steps' work by length and by count, 0 to 1, and what the steps took.

    The shares by count are the same each time a script is recorded; a single operator outside the
    model that had to wait for a core moves those by length.
    """
    trace = stepscope.open(path, cache=False)
    work, length = _work(trace)
    stage, module = trace.events.text("stage"), trace.events["module"]
    staged = stage.mask(*_named_stages(stage.values))
    of_model = work & stage.mask(*_OF_THE_MODEL)
    in_modules = of_model & (module >= 0)
    each = np.ones_like(length)
    steps = trace["steps"]
    return {
        "work": "device" if device_work(trace).any() else "operators",
        "events": len(trace.events),
        "steps": steps["step"].tolist(),
        "ms_per_step": _ms_per_step(steps),
        "device_busy_ms": (steps["device_busy_ns"] * 1e-6).tolist(),
        "staged": _share(work & staged, work, length),
        "in_modules": _share(in_modules, of_model, length),
        "staged_by_count": _share(work & staged, work, each),
        "in_modules_by_count": _share(in_modules, of_model, each),
        "launched": _launched(trace),
        "modules": len(trace["modules"]),
        "modules_evidence": trace["modules"].text("evidence")[0] if len(trace["modules"]) else None,
        "warnings": list(trace["warnings"].rows()),
    }


def _ms_per_step(steps: Table) -> float:
    """The mean step length, the warm-up step included."""
    if not len(steps):
        return 0.0
    return float(step_lengths(steps).mean()) * 1e-6


def _work(trace: Trace) -> tuple[NDArray[np.bool_], Ids]:
    """Which events are work of recorded steps, and how long each is, ns."""
    events = trace.events
    device = device_work(trace)
    in_step = events["step"] >= 0
    if device.any():
        return device & in_step, events["duration_ns"]
    return events.text("category").mask("cpu_op") & in_step, events["self_ns"]


def _named_stages(stages: tuple[str, ...] | list[str]) -> list[str]:
    return [stage for stage in stages if stage != "other"]


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_], length: Ids) -> float:
    total = int(length[whole].sum())
    return int(length[part].sum()) / total if total else 0.0


def _launched(trace: Trace) -> float | None:
    """The share of device work, by count, whose launch was found, if that was recorded."""
    earlier = (one["count"] for one in trace["warnings"].rows() if one["code"] == _EARLIER)
    count = int(device_work(trace).sum()) - sum(earlier)
    return len(trace["launches"]) / count if count else None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"file": name, **coverage(Path(name))}, indent=1))
