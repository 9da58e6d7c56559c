"""Time by name and by kind: kernels, or operators if there is no device."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import asdict

from stepscope.arrays import Floats, Ids, IntArray, Mask
from stepscope.summary.efficiency import WorkBounds, with_known_intensity
from stepscope.summary.facts import Kernel, KernelStatistics
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

_MS = 1e-6


def kernels_of(selected: SelectedSteps, bounds: WorkBounds) -> list[Kernel]:
    """Kernels by name, the longest first."""
    events, rows = selected.trace.events, selected.work
    names, code = events.text("name").values, events["name"][rows]
    count = np.bincount(code, minlength=len(names))
    total = np.bincount(code, selected.work_ns, len(names))
    kind, stage = _dominant(selected, "kind"), _dominant(selected, "stage")
    rates = _Rates(selected, bounds, len(names))
    whole = max(float(total.sum()), 1.0)
    found = [
        Kernel(
            names[code],
            kind[code] or "",
            stage[code] or "",
            float(count[code] / selected.count),
            float(total[code] * _MS / selected.count),
            float(total[code] / whole),
            **rates.of(code),
        )
        for code in np.flatnonzero(total).tolist()
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ms, kernel.name))


class _Rates:
    """Achieved rates by name, over the pieces whose FLOPs or bytes are known."""

    def __init__(self, selected: SelectedSteps, bounds: WorkBounds, names: int) -> None:
        code, time = (
            selected.trace.events["name"][selected.work],
            selected.work_ns.astype(np.float64),
        )
        products, kernels = bounds.pieces.products, _kernels(selected)

        def over(known: Mask, of: Floats, by: Floats = time) -> Floats:
            base = np.bincount(code[known], by[known], names)
            return np.bincount(code[known], of[known], names) / np.where(base > 0, base, np.nan)

        computes = products & ~np.isnan(bounds.flops)
        moves = ~np.isnan(bounds.pieces.bytes) & kernels
        self.tflops = over(computes, bounds.flops) / 1e3
        self.gbytes = over(moves, bounds.pieces.bytes)
        pieces = bounds.pieces
        self.intensity = over(with_known_intensity(pieces), pieces.flops, pieces.bytes)
        computing = np.where(products, bounds.computing_ns, 0.0)
        moving = np.where(products & ~moves, 0.0, bounds.moving_ns)
        best = np.maximum(computing, moving)
        known = ~np.isnan(best) & (best > 0) & kernels
        self.of_peak = over(known, best)
        self.by_memory = over(known, np.where(moving > computing, time, 0.0)) > 0.5

    def of(self, code: int) -> dict[str, Any]:
        """The last fields of a `Kernel`."""
        of_peak = _known(self.of_peak[code])
        limit = "memory" if self.by_memory[code] else "compute"
        return {
            "tflops": _known(self.tflops[code]),
            "gbytes": _known(self.gbytes[code]),
            "intensity": _known(self.intensity[code]),
            "of_peak": of_peak,
            "limit": "" if of_peak is None else limit,
        }


def _kernels(selected: SelectedSteps) -> Mask:
    """Pieces that are kernels: copies are bound by the link, not by the device's memory."""
    kernels: Mask = selected.trace.events.text("category").mask("kernel")[selected.work]
    return kernels


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def time_by_kind(selected: SelectedSteps) -> dict[str, float]:
    """Time by kind, ms per step, the longest first."""
    events = selected.trace.events
    kinds = events.text("kind").values
    total = np.bincount(events["kind"][selected.work], selected.work_ns, len(kinds))
    order = [code for code in np.argsort(-total, kind="stable").tolist() if total[code]]
    return {kinds[code]: float(total[code] * _MS / selected.count) for code in order}


def _dominant(selected: SelectedSteps, column: str) -> Text:
    """The value of `column` that accounts for most time, for each name."""
    events = selected.trace.events
    names, values = len(events.text("name").values), events.text(column).values
    name, value = events["name"][selected.work], events[column][selected.work]
    known = value >= 0
    key = name[known].astype(np.int64) * len(values) + value[known]
    spent = np.bincount(key, selected.work_ns[known] + 1.0, names * len(values))
    spent = spent.reshape(names, len(values))
    return Text(np.where(spent.any(1), spent.argmax(1), -1), values)


def kernel_statistics(selected: SelectedSteps, kernels: list[Kernel]) -> list[KernelStatistics]:
    """Kernels of the selected steps with statistics of their pieces: of operators, of self time."""
    events, rows = selected.trace.events, selected.work
    time = selected.work_ns.astype(np.float64)
    names, name = np.unique(events["name"][rows], return_inverse=True)
    count, total = np.bincount(name), np.bincount(name, time)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.bincount(name, (time - mean[name]) ** 2) / np.maximum(count, 1))
    order = np.lexsort((rows, time, name))  # the last of each name is its longest
    ends = np.cumsum(count)
    least, longest = order[ends - count], order[ends - 1]
    stages = _stage_shares(events["stage"][rows], name, time, len(names))
    texts = events.text("name").values
    number = {texts[code]: at for at, code in enumerate(names.tolist())}
    return [
        KernelStatistics(
            **asdict(kernel),
            mean_ns=round(mean[at]),
            least_ns=int(time[least[at]]),
            most_ns=int(time[longest[at]]),
            std_ns=round(std[at]),
            longest_event=int(rows[longest[at]]),
            stages=stages[at],
        )
        for kernel, at in ((kernel, number[kernel.name]) for kernel in kernels)
    ]


def _stage_shares(stage: IntArray, name: Ids, time: Floats, names: int) -> list[dict[str, float]]:
    """Shares of each name's time by stage, the largest first."""
    known = stage >= 0
    key = name[known] * len(STAGES) + stage[known]
    spent = np.bincount(key, time[known], names * len(STAGES)).reshape(names, len(STAGES))
    shares = spent / np.maximum(np.bincount(name, time, names), 1.0)[:, None]
    return [
        {STAGES[code]: float(row[code]) for code in np.argsort(-row).tolist() if row[code] > 0}
        for row in shares
    ]
