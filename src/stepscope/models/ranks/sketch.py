"""The sketch of one rank: what job-wide analysis needs of its trace, in at most 100 kB.

And the sketches of a job side by side: a table of ranks by stages and steps.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Floats, Ids, Times
from stepscope.facts.annotate.device.collectives import is_communication_call, is_communication_wait
from stepscope.facts.annotate.device.idle import data_loading_times
from stepscope.facts.annotate.links.launches import launch_of, on_host
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.facts.annotate.ranks import ProcessRecording, machine_of, recording_of
from stepscope.facts.annotate.steps.step_table import steady_steps
from stepscope.models.ranks.calls import (
    PATH_LETTERS,
    Calls,
    calls_of,
    calls_timeline,
    computing_on_device,
    outermost_calls,
    waits_of,
)
from stepscope.models.ranks.passes import KINDS, Passes, unpacked
from stepscope.read.shared import MOST_RANKS
from stepscope.trace.intervals import Intervals
from stepscope.trace.recorded_steps import core_share
from stepscope.trace.row_order import places_among
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace, allocated_peaks, clock_of

VERSION = 17  # of the format: kept sketches of another one are made again
UNKNOWN_RANK = -1
UNSTAGED = "compute"  # work of a job whose stages nothing shows: then it is not outside of them
_UNSTAGED = {"other", "host", "data_loading", "transfer"}  # all that work without known stages has
_MOST_STEPS = 200  # chosen: what recurs shows in so many, and they fit into `_MOST_BYTES`
_MOST_BYTES = 100_000  # bytes: 1,024 ranks then fit in 100 MB


class Sketch(msgspec.Struct, frozen=True):
    """What is kept of one rank; times in ms."""

    rank: int  # of the process
    node: str  # name of its machine, empty where unknown
    device: str  # name of its device, empty without one
    steps: list[int]  # numbers of the steps, at most 200; a warm-up step is left out
    length: list[float]
    # by stage, for each step, the time in which this rank works itself: its device computes, or without a
    # device its training thread does not wait for communication. `host` is the time in which the device
    # has nothing to compute since the CPU launches late, see `late_launches`.
    work: dict[str, list[float]]
    waiting: list[float]  # for each step the exposed communication: waiting for other ranks, or transfer
    # the work that takes longest, by name: how many a step, and the median duration; without a device
    # operators, with the time in which they call no other
    kernels: dict[str, tuple[float, float]]
    has_device: bool = False  # whether a device computes, of which the name may be unknown
    calls: Calls = Calls()
    kernel_steps: bytes = b""  # the duration of the longest kernels by step, see `by_step`
    # the share of a core that its training thread got while it could run, None if unknown
    core_share: float | None = None
    # of each of `kernels`, the durations that 10 and 90 % are below
    kernel_spread: list[tuple[float, float]] = []
    # the modules that take longest, by path: the time of a step that 10, 50 and 90 % are below, with the
    # modules inside
    modules: dict[str, tuple[float, float, float]] = {}
    # by device, the most memory allocated while recording, bytes; empty where that was not recorded
    peak_memory: dict[str, int] = {}
    recording: ProcessRecording = ProcessRecording()
    version: int = VERSION

    @property
    def peak_bytes(self) -> int | None:
        """The largest peak of memory of a device; on a rank without one that of the CPU."""
        devices = {name: peak for name, peak in self.peak_memory.items() if name != "cpu"}
        return max((devices or self.peak_memory).values(), default=None)

    @property
    def is_sound(self) -> bool:
        """Whether its columns fit its steps; raises ValueError or zlib.error if they cannot be read."""
        calls, passes, count = self.calls.columns(), Passes.unpack(self.calls.passes), len(self.steps)
        codes = [(calls.kind, len(self.calls.kinds)), (calls.place, len(self.calls.places))]
        codes += [(calls.step, count), (passes.kind, len(KINDS)), (passes.step, count)]
        times = np.array([self.length, self.waiting, *self.work.values()], np.float64)
        widths = {times.shape[1], *map(len, by_step(self.kernels, self.kernel_steps).values())}
        fits = (len(code) == 0 or 0 <= code.min() <= code.max() < most for code, most in codes)
        return self.rank < MOST_RANKS and widths == {count} and bool(np.isfinite(times).all()) and all(fits)


def sketch_of(trace: Trace, node: str = "") -> Sketch:
    """The sketch of a trace of one rank; `node`: name of its machine, where the trace does not say."""
    steps = _Steps.of(trace)
    computing, waits = computing_on_device(trace), waits_of(trace)
    timeline = calls_timeline(trace, steps.begins, steps.ends, computing, waits)
    work = (
        _device_stages(trace, steps, computing, timeline.waits)
        if len(computing)
        else _cpu_stages(trace, steps, waits)
    )
    worked = computing if len(computing) else operators(trace)
    taken = worked, work_ns(trace, worked), steps.places(trace.events["step"][worked])
    sketch = Sketch(
        rank=trace.metadata.ranks[0],
        node=node or machine_of(trace),
        device=_device(trace, computing),
        steps=steps.numbers.tolist(),
        length=_ms(steps.ends - steps.begins),
        work={stage: _ms(values) for stage, values in work.items() if values.any()},
        waiting=_ms(_exposed(trace, steps, computing, waits)),
        **kernel_times(trace, *taken, steps.number),
        has_device=len(computing) > 0,
        modules=module_times(trace, *taken, steps.number),
        peak_memory=allocated_peaks(trace["memory"], trace.metadata.ranks[0]),
        core_share=core_share(trace.metadata.capture),
        recording=recording_of(trace),
        calls=calls_of(trace, steps.begins, steps.ends, clock_of(trace.metadata), computing, timeline),
    )
    return within_limit(sketch)


class _Steps(NamedTuple):
    """The steps that a sketch keeps: their rows, numbers and times, each of shape (steps,)."""

    rows: Ids
    numbers: Ids
    begins: Times
    ends: Times

    @classmethod
    def of(cls, trace: Trace) -> "_Steps":
        """At most 200 steps of a trace, without warm-up."""
        steps = trace["steps"]
        kept = np.flatnonzero(steady_steps(steps))[:_MOST_STEPS]
        names = ("step", "window_start_ns", "window_end_ns")
        return cls(kept, *(steps[name][kept].astype(np.int64) for name in names))

    @property
    def number(self) -> int:
        return len(self.numbers)

    def places(self, step: Ids) -> Ids:
        """The position of each step number, -1 where it is none of these."""
        return places_among(self.numbers, step)

    def sums(self, place: Ids, values: Array, each: int = 1) -> Floats:
        inside = place >= 0
        return np.bincount(place[inside], values[inside], self.number * each).astype(np.float64)

    def by_stage(self, step: Ids, stage: Ids, values: Array) -> dict[str, Floats]:
        place = self.places(step)
        key = np.where((place >= 0) & (stage >= 0), place * len(STAGES) + stage, -1)
        table = self.sums(key, values, len(STAGES)).reshape(-1, len(STAGES))
        return {name: table[:, code] for code, name in enumerate(STAGES)}


def within_limit(sketch: Sketch) -> Sketch:
    """The sketch, with the calls of fewer steps where it would be larger than 100 kB."""
    while sketch.calls.packed and len(msgspec.msgpack.encode(sketch)) > _MOST_BYTES:
        sketch = msgspec.structs.replace(sketch, calls=sketch.calls.of_every_second_step())
    return sketch


def _device(trace: Trace, computing: Ids) -> str:
    device = trace["tracks"]["device"][trace.events["track"][computing]]
    known = trace.metadata.device(int(device[0])) if len(device) else {}
    return str(known.get("name", ""))


def _device_stages(trace: Trace, steps: _Steps, computing: Ids, waits: Intervals) -> dict[str, Floats]:
    """Device work by stage and step, data loading, and what the CPU keeps the device waiting."""
    events, runs = trace.events, trace["stages"]
    columns = (events[name][computing] for name in ("step", "stage", "duration_ns"))
    loads = np.where(runs.text("stage").mask("data_loading"), steps.places(runs["step"]), -1)
    late = late_launches(trace, computing, steps.begins, steps.ends, waits)
    return {
        **steps.by_stage(*columns),
        "data_loading": steps.sums(loads, runs["cpu_ns"]),
        "host": late.within(steps.begins, steps.ends).astype(np.float64),
    }


def _cpu_stages(trace: Trace, steps: _Steps, waits: Intervals) -> dict[str, Floats]:
    """Without a device: the training thread's time by stage, less its communication."""
    runs = trace["stages"]
    lost = waits.within(runs["start_ns"], runs["end_ns"])
    return steps.by_stage(runs["step"], runs["stage"], np.maximum(runs["cpu_ns"] - lost, 0))


def _exposed(trace: Trace, steps: _Steps, computing: Ids, waits: Intervals) -> Floats:
    """Communication while nothing computes, by step, ns: of the device where it has any."""
    events, rows = trace.events, outermost_calls(trace)
    rows = rows[~on_host(trace)[rows]]
    alone = Intervals(*events.spans(rows)).minus(Intervals(*events.spans(computing)))
    kept = trace["steps"].take(steps.rows)
    waited = waits.within(kept["start_ns"], kept["end_ns"])
    return (waited + alone.within(steps.begins, steps.ends)).astype(np.float64)


def late_launches(trace: Trace, work: Ids, begins: Times, ends: Times, waits: Intervals) -> Intervals:
    """From the end of computing to the call that launches what is computed next.

    Communication that runs meanwhile does not count, so a rank that waits long for others is as
    late as one that does not; the table `idle` calls that time communication.

    Args:
        work: the events that compute on a device, at least one.
        begins, ends: of the steps, ns, shape (steps,), at least one.
        waits: when the rank waits for others; they and data loading are left out.
    """
    events = trace.events
    (begin, end), caller = events.spans(work), launch_of(trace)[work]
    reach = np.maximum.accumulate(end)
    since = np.concatenate([[min(begins[0], begin[0])], reach])
    until = np.append(begin, max(ends[-1], reach[-1]))
    is_known = np.append(caller >= 0, False)
    launched = np.where(is_known, np.append(events["start_ns"][caller], 0), until)
    late = Intervals(since, np.clip(launched, since, np.maximum(until, since)))
    unknown = Intervals(since[~is_known], np.maximum(until, since)[~is_known])
    communicates = events.text("category").mask("communication") & ~on_host(trace)
    late = late.minus(unknown.intersect(Intervals(*events.spans(communicates))))
    return late.minus(waits).minus(data_loading_times(trace))


def _ms(values: Any) -> list[float]:
    return [round(float(value) / 1e6, 4) for value in values]


@dataclass(frozen=True)
class JobTable:
    """A job's ranks side by side; times in ms."""

    sketches: Sequence[Sketch]
    steps: list[int]  # numbers of the steps that all ranks have
    places: list[list[int]]  # for each sketch the positions of these steps
    stages: list[str]
    work: Floats  # own work, shape (ranks, stages, steps)
    length: Floats  # of the steps, shape (ranks, steps)

    @cached_property
    def step_ms(self) -> float:
        """The mean length of a step on the ranks, the median over the steps."""
        return float(np.median(self.length.mean(axis=0)))

    @cached_property
    def own_ms(self) -> Floats:
        """The progress of each rank in each step: its time without waiting, shape (ranks, steps).

        Where no communication is known, the sum of its stages.
        """
        return np.array(
            [
                np.array(one.calls.own_ns, np.float64)[place] / 1e6
                if len(one.calls.own_ns) == len(one.steps)
                else work.sum(axis=0)
                for one, place, work in zip(self.sketches, self.places, self.work, strict=True)
            ]
        )

    @cached_property
    def received(self) -> Floats:
        """What each rank receives in all-to-all, bytes per step, shape (ranks,); 0 if unknown."""
        return np.array([_received(one) for one in self.sketches])


def _received(sketch: Sketch) -> float:
    exchanges = [kind.kind.startswith("alltoall") for kind in sketch.calls.kinds]
    if not any(exchanges):
        return 0.0
    columns = sketch.calls.columns()
    mine = np.array(exchanges, np.bool_)[columns.kind] & (columns.received > 0)
    return float(columns.received[mine].sum() / max(len(np.unique(columns.step)), 1))


def short_ranks(sketches: Sequence[Sketch]) -> set[int]:
    """Ranks with fewer than half of the median rank's steps: all others would be cut to theirs."""
    if not sketches:
        return set()
    usual = float(np.median([len(one.steps) for one in sketches]))
    return {one.rank for one in sketches if len(one.steps) < usual / 2}


def job_table(sketches: Sequence[Sketch]) -> JobTable:
    """Put ranks side by side; ranks that number their steps differently by position."""
    steps = sorted(set.intersection(*(set(one.steps) for one in sketches)))
    if steps:
        place_of = ({step: place for place, step in enumerate(one.steps)} for one in sketches)
        places = [[place[step] for step in steps] for place in place_of]
    else:
        count = min(len(one.steps) for one in sketches)
        places = [list(range(count)) for _ in sketches]
        steps = sketches[0].steps[:count]
    present = {stage for one in sketches for stage in one.work}
    stages = [stage for stage in (*STAGES, "host") if stage in present]
    names = [UNSTAGED if stage == "other" and present <= _UNSTAGED else stage for stage in stages]
    pairs = list(zip(sketches, places, strict=True))
    none = [0.0] * max(len(one.steps) for one in sketches)
    work = [[np.array(one.work.get(stage, none))[place] for stage in stages] for one, place in pairs]
    length = np.array([np.array(one.length)[place] for one, place in pairs])
    shape = len(sketches), len(stages), len(steps)  # also where no rank works
    return JobTable(sketches, steps, places, names, np.array(work, np.float64).reshape(shape), length)


# -- kernels and modules

# What bounds a sketch, which is to have 100 kB at most.
_MOST_KERNELS = 100  # names of kernels
_MOST_BY_STEP = 24  # of them with a duration for each step: two bytes a step
_MOST_MODULES = 40  # modules
_NAME_LETTERS = 120  # of a kernel's name
_PERMILLE = 1000  # durations by step are kept as thousandths of the median
_QUANTILES = (0.1, 0.5, 0.9)  # of a module's time in a step


def work_ns(trace: Trace, rows: Ids) -> Floats:
    """How long events work: on a device all their time, on a CPU that in which they call no other."""
    events = trace.events
    return np.where(on_host(trace)[rows], events["self_ns"][rows], events["duration_ns"][rows])


def kernel_times(trace: Trace, rows: Ids, duration: Floats, place: Ids, steps: int) -> dict[str, Any]:
    """The longest work by name, as `kernels`, `kernel_spread` and `kernel_steps` of a sketch;
    `place` is the position of the step of each, -1 for none."""
    names = trace.events.text("name")
    rows, duration, place = rows[place >= 0], duration[place >= 0], place[place >= 0]
    codes = names.codes[rows]
    order = np.lexsort((duration, codes))
    codes, duration, place = codes[order], duration[order], place[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(np.append(starts, len(codes)))
    total = np.add.reduceat(duration, starts) if len(starts) else np.zeros(0)
    longest = np.argsort(-total, kind="stable")[:_MOST_KERNELS]
    low, median, high = (duration[(starts + counts * tenths // 10)[longest]] / 1e6 for tenths in (1, 5, 9))
    kernels = {
        names.values[codes[starts[row]]][:_NAME_LETTERS]: (
            round(float(counts[row] / steps), 3),
            round(float(each), 6),
        )
        for row, each in zip(longest.tolist(), median, strict=True)
    }
    spread = [(round(float(least), 6), round(float(most), 6)) for least, most in zip(low, high, strict=True)]
    parts = [slice(starts[row], starts[row] + counts[row]) for row in longest[:_MOST_BY_STEP]]
    sums = (np.bincount(place[part], duration[part], steps) for part in parts)
    counts_by_step = (np.bincount(place[part], minlength=steps) for part in parts)
    means = [total / np.maximum(count, 1) for total, count in zip(sums, counts_by_step, strict=True)]
    medians = (1e6 * median[:_MOST_BY_STEP]).tolist()
    return {"kernels": kernels, "kernel_spread": spread, "kernel_steps": packed_by_step(means, medians)}


def packed_by_step(means: Sequence[Floats], medians: Sequence[float]) -> bytes:
    """Mean durations by step as thousandths of the median, in little room."""
    if not len(means):
        return b""
    ratio = np.array(means) / np.maximum(np.array(medians)[:, None], 1e-9)
    table = np.clip(np.rint(ratio * _PERMILLE), 0, np.iinfo(np.uint16).max).astype("<u2")
    return zlib.compress(table.tobytes())


def by_step(kernels: Mapping[str, tuple[float, float]], packed: bytes) -> dict[str, Floats]:
    """The mean duration of kernels in each step, ms, nan where there is none."""
    if not packed:
        return {}
    count = min(len(kernels), _MOST_BY_STEP)
    table = unpacked(packed, "<u2", count) / _PERMILLE
    table = np.where(table > 0, table, np.nan)
    return {name: table[row] * each for row, (name, (_, each)) in enumerate(list(kernels.items())[:count])}


def operators(trace: Trace) -> Ids:
    """The operators of the CPU's threads, without those that communicate or wait for it."""
    events = trace.events
    name = events.text("name")
    communicates = name.where(is_communication_call) | name.where(is_communication_wait)
    return np.flatnonzero(events.text("category").mask("cpu_op") & ~communicates)


def module_times(
    trace: Trace, rows: Ids, duration: Floats, place: Ids, steps: int
) -> dict[str, tuple[float, float, float]]:
    """The longest modules by path: the time of a step in ms that 10, 50 and 90 % are below.
    `duration` is that of each row, ns, `place` the position of its step, -1 for none."""
    modules = trace["modules"]
    module = trace.events["module"][rows]
    inside = (place >= 0) & (module >= 0)
    if not inside.any():
        return {}
    key = module[inside].astype(np.int64) * steps + place[inside]
    own = np.bincount(key, duration[inside], len(modules) * steps).astype(np.float64)
    total = subtree_totals(own.reshape(-1, steps), modules["parent"])
    worked = np.flatnonzero(total.any(axis=1))
    longest = worked[np.argsort(-total[worked].sum(axis=1), kind="stable")[:_MOST_MODULES]]
    times = (np.quantile(total[longest], _QUANTILES, axis=1) / 1e6).T.tolist()
    path = modules.text("path")
    return {
        str(path[row])[:PATH_LETTERS]: (round(low, 4), round(middle, 4), round(high, 4))
        for row, (low, middle, high) in zip(longest.tolist(), times, strict=True)
    }
