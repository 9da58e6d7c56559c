"""Hardware efficiency: achieved FLOP/s relative to the peak of the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepscope.annotate.modules.costs import subtree_totals
from stepscope.arrays import Codes8, Floats, Mask
from stepscope.roofline import WorkPieces, precisions, rates_of, work_of_pieces
from stepscope.roofline.operator_work import SHAPES, XLA
from stepscope.roofline.rates import PRECISIONS
from stepscope.summary.facts import Device, Efficiency
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.schema import STAGES

_MAX_WITHOUT_PEAK = 0.01  # report a utilization if at most this share of FLOPs has no known peak
_MIN_KNOWN = 0.5  # and if the FLOPs of at least this share of the time are known


class WorkBounds:
    """Lower bounds on the time of each piece of work (roofline).

    Attributes:
        pieces: FLOPs and bytes of each piece, in the order of `selected.work`.
        flops: FLOPs of products, float64; 0 for everything else, nan if unknown.
        computing_ns: time for the FLOPs at the peak rate, float64; nan if unknown.
        moving_ns: time for the bytes at the memory bandwidth; nan if unknown.
    """

    def __init__(self, selected: SelectedSteps, devices: list[Device]) -> None:
        self.pieces: WorkPieces = work_of_pieces(selected.trace, selected.work, selected.work_ns)
        self.flops: Floats = np.where(self.pieces.products, self.pieces.flops, 0)
        rates = rates_of(next((device.name for device in devices if device.name), "")) or {}
        self.gpu, self.rates = str(rates.get("name", "")), rates
        kernels = selected.trace.events.text("name").take(selected.work)
        self.precision = precisions(kernels, self.pieces.width)
        self.computing_ns = self.flops / (self._peaks(rates) * 1e3)
        self.moving_ns = self.pieces.bytes / float(rates.get("bandwidth") or np.nan)

    def _peaks(self, rates: dict[str, Any]) -> Floats:
        peak = np.full(len(self.flops), np.nan)
        for name in PRECISIONS:
            peak[self.precision.mask(name)] = rates.get(name) or np.nan
        return peak


def efficiency_of(
    selected: SelectedSteps, bounds: WorkBounds, devices: list[Device]
) -> Efficiency | None:
    """The efficiency of the selected steps; None if no FLOPs are known."""
    products, flops = bounds.pieces.products, bounds.flops
    known = products & ~np.isnan(flops)
    total = float(flops[known].sum())
    if not total:
        return None
    repeated = known & (selected.trace.events["recompute"][selected.work] == 1)
    busy, with_peak = float(selected.work_ns[known].sum()), known & ~np.isnan(bounds.computing_ns)
    share = busy / max(float(selected.work_ns[products].sum()), 1.0)
    hardware = float(bounds.computing_ns[with_peak].sum())
    model = hardware - float(bounds.computing_ns[with_peak & repeated].sum())
    has_peak = float(flops[with_peak].sum()) >= (1 - _MAX_WITHOUT_PEAK) * total
    reportable = has_peak and share >= _MIN_KNOWN
    instructions = bool(bounds.pieces.origin.any())  # XLA's: they ran where they were recorded
    ran_here = bool(devices or selected.trace.metadata.capture or instructions)
    windows = [device.window_ms * 1e6 * selected.count for device in devices]
    windows = windows or [float(selected.length_ns)]
    return Efficiency(
        flops=total / selected.count,
        repeated_flops=float(flops[repeated].sum()) / selected.count,
        known=share,
        tflops=total / max(max(windows), 1.0) / 1e3,
        busy_tflops=total / max(busy, 1.0) / 1e3 if ran_here else None,
        gpu=bounds.gpu,
        peak_tflops=_peaks_in_use(bounds, known),
        mfu=model / max(sum(windows), 1.0) if reportable else None,
        hfu=hardware / max(sum(windows), 1.0) if reportable else None,
        busy_utilization=hardware / max(busy, 1.0) if has_peak else None,
        counted_by=_counted_by(bounds.pieces.origin[known]),
    )


class ModuleWork(NamedTuple):
    """Work of each module and its children per step, float64, shape (modules,).

    Attributes:
        flops: FLOPs of matrix products, convolutions and attention, recomputation too; nan if
            unknown.
        all_flops: FLOPs of all work whose FLOPs and bytes are known.
        all_bytes: bytes of the same work.
    """

    flops: Floats
    all_flops: Floats
    all_bytes: Floats


def work_of_modules(selected: SelectedSteps, bounds: WorkBounds) -> ModuleWork:
    """The work of each module and its children per step, without updates of their parameters."""
    parent = selected.trace["modules"]["parent"]
    events = selected.trace.events
    is_update = events["stage"][selected.work] == STAGES.index("optimizer")
    module = np.where(is_update, -1, events["module"][selected.work])

    def total(rows: Mask, values: Floats) -> Floats:
        own = np.bincount(module[rows], values[rows], len(parent)) / selected.count
        return subtree_totals(own, parent)

    known = bounds.pieces.products & ~np.isnan(bounds.flops) & (module >= 0)
    counted = with_known_intensity(bounds.pieces) & (module >= 0)
    flops = total(known, bounds.flops) if known.any() else np.full(len(parent), np.nan)
    return ModuleWork(
        flops, total(counted, bounds.pieces.flops), total(counted, bounds.pieces.bytes)
    )


def with_known_intensity(pieces: WorkPieces) -> Mask:
    """Pieces with known FLOPs and bytes; an operator around a product does the same work again."""
    again = pieces.products & (pieces.flops == 0)
    result: Mask = ~np.isnan(pieces.flops + pieces.bytes) & ~again
    return result


def _counted_by(origin: Codes8) -> str:
    return "xla" if (origin == XLA).any() else "shapes" if (origin == SHAPES).any() else ""


def _peaks_in_use(bounds: WorkBounds, known: Mask) -> dict[str, float]:
    """Peak rates of the precisions in use, TFLOP/s."""
    names = [name for name in PRECISIONS if (bounds.precision.mask(name) & known).any()]
    return {name: float(bounds.rates[name]) for name in names if bounds.rates.get(name)}
