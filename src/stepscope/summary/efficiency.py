"""How well the hardware is used: operations a second, against what the device could do at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.modules import rolled_up
from stepscope.roofline import Pieces, precisions, rates_of, work_of_pieces
from stepscope.roofline.precision import PRECISIONS
from stepscope.summary.devices import Device
from stepscope.summary.part import Part

Floats = NDArray[np.float64]
_ALL_BUT = 0.01  # a utilisation is told if no more than this share of the operations has no peak
_LEAST_KNOWN = 0.5  # and if this share of the time of such work is known


@dataclass(frozen=True)
class Efficiency:
    """What the matrix products, convolutions and attention of a step come to.

    Attributes:
        flops: floating-point operations a step, two a multiply and add.
        repeated_flops: those of them that backward repeats (checkpointing).
        known: share of the time of such work whose operations are known.
        tflops: of the whole step, TFLOP/s.
        busy_tflops: of the time in which such work runs, TFLOP/s. None of another tool's trace
            without a device's work: what the CPU's calls took may have been launches only.
        gpu: the device, where its peak rates are known, else empty.
        peak_tflops: its peak rate in each precision in use.
        mfu: model FLOPs utilisation: the time that the operations without the repeated ones take at
            the peak of their precision, as a share of the step. None where a peak is not known, or
            the operations of half of the time or more are not.
        hfu: hardware FLOPs utilisation: the same with the repeated ones.
        busy_utilisation: the same as a share of the time in which such work runs, where known.

    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """

    flops: float
    repeated_flops: float
    known: float
    tflops: float
    busy_tflops: float | None
    gpu: str
    peak_tflops: dict[str, float]
    mfu: float | None
    hfu: float | None
    busy_utilisation: float | None


class Used:
    """The pieces of work of a step, what they come to, and the least time that they could take.

    Attributes:
        pieces: the work of each piece, as `part.work`.
        flops: operations of products, float64; 0 for all else, nan where not known.
        computing_ns: the least time for these at the peak rate, float64; nan where not known.
        moving_ns: the least time for the bytes at the memory's bandwidth; nan where not known.
    """

    def __init__(self, part: Part, devices: list[Device]) -> None:
        self.pieces: Pieces = work_of_pieces(part.trace, part.work, part.work_ns)
        self.flops: Floats = np.where(self.pieces.products, self.pieces.flops, 0)
        rates = rates_of(next((one.name for one in devices if one.name), "")) or {}
        self.gpu, self.rates = str(rates.get("name", "")), rates
        kernels = part.trace.events.text("name").take(part.work)
        self.precision = precisions(kernels, self.pieces.width)
        self.computing_ns = self.flops / (self._peaks(rates) * 1e3)
        self.moving_ns = self.pieces.bytes / float(rates.get("bandwidth") or np.nan)

    def _peaks(self, rates: dict[str, Any]) -> Floats:
        peak = np.full(len(self.flops), np.nan)
        for name in PRECISIONS:
            peak[self.precision.mask(name)] = rates.get(name) or np.nan
        return peak


def efficiency_of(part: Part, used: Used, devices: list[Device]) -> Efficiency | None:
    """The efficiency of some steps; None where no operations are known."""
    products, flops = used.pieces.products, used.flops
    known = products & ~np.isnan(flops)
    total = float(flops[known].sum())
    if not total:
        return None
    repeated = known & (part.trace.events["recompute"][part.work] == 1)
    busy, mine = float(part.work_ns[known].sum()), known & ~np.isnan(used.computing_ns)
    share = busy / max(float(part.work_ns[products].sum()), 1.0)
    hardware = float(used.computing_ns[mine].sum())
    model = hardware - float(used.computing_ns[mine & repeated].sum())
    has_peak = float(flops[mine].sum()) >= (1 - _ALL_BUT) * total
    told = has_peak and share >= _LEAST_KNOWN
    ran_here = bool(devices or part.trace.metadata.capture)
    windows = [one.window_ms * 1e6 * part.count for one in devices] or [_wall_ns(part)]
    return Efficiency(
        flops=total / part.count,
        repeated_flops=float(flops[repeated].sum()) / part.count,
        known=share,
        tflops=total / max(max(windows), 1.0) / 1e3,
        busy_tflops=total / max(busy, 1.0) / 1e3 if ran_here else None,
        gpu=used.gpu,
        peak_tflops=_peaks_in_use(used, known),
        mfu=model / max(sum(windows), 1.0) if told else None,
        hfu=hardware / max(sum(windows), 1.0) if told else None,
        busy_utilisation=hardware / max(busy, 1.0) if has_peak else None,
    )


def flops_of_modules(part: Part, used: Used) -> Floats:
    """Operations a step of each module with those inside it, shape (modules,).

    Those that backward repeats count too; nan where none are known.
    """
    parent, module = part.trace["modules"]["parent"], part.trace.events["module"][part.work]
    mine = used.pieces.products & ~np.isnan(used.flops) & (module >= 0)
    if not mine.any():
        return np.full(len(parent), np.nan)
    own = np.bincount(module[mine], used.flops[mine], len(parent)) / part.count
    return rolled_up(own, parent)


def _peaks_in_use(used: Used, known: NDArray[np.bool_]) -> dict[str, float]:
    """Peak rates of the precisions in which operations are computed, TFLOP/s."""
    names = [name for name in PRECISIONS if (used.precision.mask(name) & known).any()]
    return {name: float(used.rates[name]) for name in names if used.rates.get(name)}


def _wall_ns(part: Part) -> float:
    return float((part.steps["end_ns"] - part.steps["start_ns"]).sum())
