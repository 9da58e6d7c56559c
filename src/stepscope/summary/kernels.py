"""The work of a step by name, and by kind: kernels, or operators where there is no device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.summary.efficiency import Used
from stepscope.summary.part import Part
from stepscope.trace.table import Text

Floats = NDArray[np.float64]
_MS = 1e-6


@dataclass(frozen=True)
class Kernel:
    """Device work of one name (operators where there is no device): mean a step.

    Attributes:
        tflops: rate at which it computes, TFLOP/s; None where its operations are not known, and for
            all but matrix products, convolutions and attention.
        gbytes: rate at which it moves its inputs and outputs once, GB/s; None where not known.
        of_peak: share of its time that it would take at the device's peak rates; None where these
            or the work are not known.
        limit: which of the two rates sets that time, `compute` or `memory`, else empty.
    """

    name: str
    kind: str
    stage: str
    count: float
    total_ms: float
    share: float
    tflops: float | None
    gbytes: float | None
    of_peak: float | None
    limit: str


def kernels_of(part: Part, used: Used) -> list[Kernel]:
    """Work by name, the longest first."""
    events, rows = part.trace.events, part.work
    names, code = events.text("name").values, events["name"][rows]
    count = np.bincount(code, minlength=len(names))
    total = np.bincount(code, part.work_ns, len(names))
    kind, stage = _mostly(part, "kind"), _mostly(part, "stage")
    rates = _Rates(part, used, len(names))
    whole = max(float(total.sum()), 1.0)
    found = [
        Kernel(
            names[code],
            kind[code] or "",
            stage[code] or "",
            float(count[code] / part.count),
            float(total[code] * _MS / part.count),
            float(total[code] / whole),
            *rates.of(code),
        )
        for code in np.flatnonzero(total).tolist()
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ms, kernel.name))


class _Rates:
    """The rates of the work of each name, over the pieces whose work is known."""

    def __init__(self, part: Part, used: Used, names: int) -> None:
        code, time = part.trace.events["name"][part.work], part.work_ns.astype(np.float64)
        products, kernels = used.pieces.products, _kernels(part)

        def over(known: NDArray[np.bool_], of: Floats, by: Floats = time) -> Floats:
            told = np.bincount(code[known], by[known], names)
            return np.bincount(code[known], of[known], names) / np.where(told > 0, told, np.nan)

        computes = products & ~np.isnan(used.flops)
        moves = ~np.isnan(used.pieces.bytes) & kernels
        self.tflops = over(computes, used.flops) / 1e3
        self.gbytes = over(moves, used.pieces.bytes)
        computing = np.where(products, used.computing_ns, 0.0)
        moving = np.where(products & ~moves, 0.0, used.moving_ns)
        best = np.maximum(computing, moving)
        known = ~np.isnan(best) & (best > 0) & kernels
        self.of_peak = over(known, best)
        self.by_memory = over(known, np.where(moving > computing, time, 0.0)) > 0.5

    def of(self, code: int) -> tuple[float | None, float | None, float | None, str]:
        """As the last fields of a `Kernel`."""
        of_peak = _known(self.of_peak[code])
        limit = "memory" if self.by_memory[code] else "compute"
        return (
            _known(self.tflops[code]),
            _known(self.gbytes[code]),
            of_peak,
            "" if of_peak is None else limit,
        )


def _kernels(part: Part) -> NDArray[np.bool_]:
    """Pieces that compute on a device: copies go by the link, not by the device's memory."""
    kernels: NDArray[np.bool_] = part.trace.events.text("category").mask("kernel")[part.work]
    return kernels


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def time_by_kind(part: Part) -> dict[str, float]:
    """The time of the work of each kind, ms a step, the longest first."""
    events = part.trace.events
    kinds = events.text("kind").values
    total = np.bincount(events["kind"][part.work], part.work_ns, len(kinds))
    order = [code for code in np.argsort(-total, kind="stable").tolist() if total[code]]
    return {kinds[code]: float(total[code] * _MS / part.count) for code in order}


def _mostly(part: Part, column: str) -> Text:
    """What `column` says of the work of each name for most of its time."""
    events = part.trace.events
    names, values = len(events.text("name").values), events.text(column).values
    name, value = events["name"][part.work], events[column][part.work]
    told = value >= 0
    key = name[told].astype(np.int64) * len(values) + value[told]
    spent = np.bincount(key, part.work_ns[told] + 1.0, names * len(values))
    spent = spent.reshape(names, len(values))
    return Text(np.where(spent.any(1), spent.argmax(1), -1), values)
