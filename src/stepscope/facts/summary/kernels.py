"""Kernels by name and kind, or operators without a device: their time, rates and efficiency."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import asdict

from stepscope.base.arrays import Floats, Ids, IntArray, Mask, Times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.facts.roofline.operator_work import SHAPES, XLA, WorkPieces, work_of_pieces
from stepscope.facts.roofline.rates import PRECISIONS, precisions, rates_of
from stepscope.facts.summary.facts import Device, Efficiency, HardwareCounter, Kernel, KernelStatistics
from stepscope.facts.summary.selected_steps import MS, SelectedSteps
from stepscope.facts.timeline.axis.counters import CounterValues
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import places_among
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

_MAX_WITHOUT_PEAK = 0.01  # report a utilization if at most this share of FLOPs has no known peak
_MIN_KNOWN = 0.5  # and if the FLOPs of at least this share of the time are known
_FEWEST_STEPS, _UNEQUAL = 3, 1.2  # steps, and times the FLOPs of the smallest: what a reader sees as a spread
_FOLLOWS = 0.9  # correlation of a step's length with its FLOPs


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
        peak = np.full(len(self.flops), np.nan)
        for name in PRECISIONS:
            peak[self.precision.mask(name)] = rates.get(name) or np.nan
        self.computing_ns = self.flops / (peak * 1e3)
        self.moving_ns = self.pieces.bytes / float(rates.get("bandwidth") or np.nan)


def efficiency_of(selected: SelectedSteps, bounds: WorkBounds, devices: list[Device]) -> Efficiency | None:
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
    origin = bounds.pieces.origin[known]
    used = [name for name in PRECISIONS if (bounds.precision.mask(name) & known).any()]
    return Efficiency(
        flops=total / selected.count,
        repeated_flops=float(flops[repeated].sum()) / selected.count,
        known=share,
        tflops=total / max(max(windows), 1.0) / 1e3,
        busy_tflops=total / max(busy, 1.0) / 1e3 if ran_here else None,
        gpu=bounds.gpu,
        peak_tflops={name: float(bounds.rates[name]) for name in used if bounds.rates.get(name)},
        mfu=model / max(sum(windows), 1.0) if reportable else None,
        hfu=hardware / max(sum(windows), 1.0) if reportable else None,
        busy_utilization=hardware / max(busy, 1.0) if has_peak else None,
        counted_by="xla" if (origin == XLA).any() else "shapes" if (origin == SHAPES).any() else "",
        unequal_steps=_unequal_steps(selected, known, flops) if share >= _MIN_KNOWN else None,
    )


def _unequal_steps(selected: SelectedSteps, known: Mask, flops: Floats) -> tuple[float, float] | None:
    """The FLOPs of the smallest and the largest of several steps, if these differ by their inputs."""
    place = places_among(selected.steps["step"], selected.trace.events["step"][selected.work])[known]
    each, calls = (np.bincount(place, weights, selected.count) for weights in (flops[known], None))
    length = step_lengths(selected.steps)
    if selected.count < _FEWEST_STEPS or np.ptp(calls) or each.max() < _UNEQUAL * each.min():
        return None
    longer = np.ptp(length) > 0 and np.corrcoef(each, length)[0, 1] >= _FOLLOWS
    return (float(each.min()), float(each.max())) if longer else None


class ModuleWork(NamedTuple):
    """Work of each module and its children per step, float64, shape (modules,)."""

    flops: Floats  # FLOPs of matrix products, convolutions and attention, recomputation too; nan if unknown
    all_flops: Floats  # FLOPs of all work whose FLOPs and bytes are known
    all_bytes: Floats  # bytes of the same work


def work_of_modules(selected: SelectedSteps, bounds: WorkBounds) -> ModuleWork:
    """The work of each module and its children per step, without updates of their parameters."""
    parent = selected.trace["modules"]["parent"]
    events = selected.trace.events
    is_update = events.text("stage").take(selected.work).mask("optimizer")
    module = np.where(is_update, -1, events["module"][selected.work])

    def total(rows: Mask, values: Floats) -> Floats:
        own = np.bincount(module[rows], values[rows], len(parent)) / selected.count
        return subtree_totals(own, parent)

    known = bounds.pieces.products & ~np.isnan(bounds.flops) & (module >= 0)
    counted = with_known_intensity(bounds.pieces) & (module >= 0)
    flops = total(known, bounds.flops) if known.any() else np.full(len(parent), np.nan)
    return ModuleWork(flops, total(counted, bounds.pieces.flops), total(counted, bounds.pieces.bytes))


def with_known_intensity(pieces: WorkPieces) -> Mask:
    """Pieces with known FLOPs and bytes; an operator around a product does the same work again."""
    again = pieces.products & (pieces.flops == 0)
    return ~np.isnan(pieces.flops + pieces.bytes) & ~again


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
            float(total[code] * MS / selected.count),
            float(total[code] / whole),
            **rates.of(code),
        )
        for code in np.flatnonzero(total).tolist()
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ms, kernel.name))


class _Rates:
    """Achieved rates by name, over the pieces whose FLOPs or bytes are known."""

    def __init__(self, selected: SelectedSteps, bounds: WorkBounds, names: int) -> None:
        code, time = (selected.trace.events["name"][selected.work], selected.work_ns.astype(np.float64))
        products = bounds.pieces.products
        # Copies are bound by the link, not by the device's memory.
        kernels = selected.trace.events.text("category").mask("kernel")[selected.work]

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
        of_peak = _known(self.of_peak[code])
        limit = "memory" if self.by_memory[code] else "compute"
        return {
            "tflops": _known(self.tflops[code]),
            "gbytes": _known(self.gbytes[code]),
            "intensity": _known(self.intensity[code]),
            "of_peak": of_peak,
            "limit": "" if of_peak is None else limit,
        }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def time_by_kind(selected: SelectedSteps) -> dict[str, float]:
    """Time by kind, ms per step, the longest first."""
    events = selected.trace.events
    kinds = events.text("kind").values
    total = np.bincount(events["kind"][selected.work], selected.work_ns, len(kinds))
    order = [code for code in np.argsort(-total, kind="stable").tolist() if total[code]]
    return {kinds[code]: float(total[code] * MS / selected.count) for code in order}


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


# -- hardware counters of devices, such as how busy SMs, tensor cores and memory are
# A counter event of Kineto has the values of a sample of the device's performance monitors that begins
# then, and lasts until the next begins.
#
# Source: Kineto, libkineto/src/CuptiPMSamplingProfiler.cpp and output_json.cpp (2026).


def hardware_counters(selected: SelectedSteps) -> Iterator[HardwareCounter]:
    """The counters of the devices in the selected steps, device by device."""
    trace = selected.trace
    table, tracks = trace["counters"], trace["tracks"]
    rank, device = (tracks[column][table["track"]] for column in ("rank", "device"))
    rows = np.flatnonzero((rank == selected.rank) & (device >= 0) & np.isfinite(table["value"]))
    names = table.text("series")
    for number, code in np.unique(np.stack([device[rows], names.codes[rows]], axis=1), axis=0).tolist():
        own = rows[(device[rows] == number) & (names.codes[rows] == code)]
        samples = table["time_ns"][own], table["value"][own]
        on_device = tracks["device"][trace.events["track"]] == number
        work = np.flatnonzero(device_work(trace) & on_device & selected.chosen_events)
        mean = _mean(*samples, Intervals(*selected.windows))
        if mean is not None:
            working = _mean(*samples, Intervals(*trace.events.spans(work)))
            yield HardwareCounter(number, names.values[code], mean, working)


def _mean(time: Times, value: Floats, parts: Intervals) -> float | None:
    """The mean of samples over the parts of time that they cover; None if that is nothing."""
    order = np.argsort(time, kind="stable")
    time, value = time[order].astype(np.int64), value[order]
    covered = parts.clip(int(time[0]), int(time[-1] + np.diff(time[-2:]).sum()))
    until, total = CounterValues(time, value).sums_until, covered.total()
    return float((until(covered.ends) - until(covered.starts)).sum() / total) if total else None
