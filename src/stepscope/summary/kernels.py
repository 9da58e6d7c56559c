"""The work of a step by name, and by kind: kernels, or operators where there is no device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.summary.part import Part
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

_MS = 1e-6


@dataclass(frozen=True)
class Kernel:
    """Device work of one name (operators where there is no device): mean a step."""

    name: str
    kind: str
    stage: str
    count: float
    total_ms: float
    share: float


def kernels_of(part: Part) -> list[Kernel]:
    """Work by name, the longest first."""
    events, rows = part.trace.events, part.work
    names, code = events.text("name").values, events["name"][rows]
    count = np.bincount(code, minlength=len(names))
    total = np.bincount(code, part.work_ns, len(names))
    stage = _main_stages(part, len(names))
    whole = max(float(total.sum()), 1.0)
    first = np.full(len(names), -1)
    first[code[::-1]] = rows[::-1]
    found = [
        Kernel(
            names[code],
            events.text("kind")[first[code]] or "",
            stage[code] or "",
            float(count[code] / part.count),
            float(total[code] * _MS / part.count),
            float(total[code] / whole),
        )
        for code in np.flatnonzero(total).tolist()
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ms, kernel.name))


def time_by_kind(part: Part) -> dict[str, float]:
    """The time of the work of each kind, ms a step, the longest first."""
    events = part.trace.events
    kinds = events.text("kind").values
    total = np.bincount(events["kind"][part.work], part.work_ns, len(kinds))
    order = [code for code in np.argsort(-total, kind="stable").tolist() if total[code]]
    return {kinds[code]: float(total[code] * _MS / part.count) for code in order}


def _main_stages(part: Part, names: int) -> Text:
    """The stage in which the work of each name spends most of its time."""
    events = part.trace.events
    name, stage = events["name"][part.work], events["stage"][part.work]
    told = stage >= 0
    key = name[told].astype(np.int64) * len(STAGES) + stage[told]
    spent = np.bincount(key, part.work_ns[told] + 1.0, names * len(STAGES))
    spent = spent.reshape(names, len(STAGES))
    return Text(np.where(spent.any(1), spent.argmax(1), -1), STAGES)
