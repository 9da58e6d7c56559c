"""The unbroken runs of each stage within each step: the table `stages`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Codes, Codes8, Ids32, Mask, Rows, Times
from stepscope.facts.annotate.device.idle import busy_times, time_blocked
from stepscope.facts.annotate.device.one_off_costs import COMPILING
from stepscope.facts.annotate.jax.calls import is_compiled_call, is_wait, waits_for_calls
from stepscope.facts.annotate.jax.scopes import loads_next_batch
from stepscope.facts.annotate.links.launches import at_launch, device_work, on_host
from stepscope.facts.annotate.range_names import stage_of_range
from stepscope.facts.annotate.stages.optimizers import name_optimizers, optimizer_calls, split_by_optimizer
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.missing_work import work_is_missing
from stepscope.trace.intervals import Intervals, grouped_union
from stepscope.trace.row_order import begins_run, count_within, ends_run, last_begun, last_of_key
from stepscope.trace.schema import BOUNDS, STAGE_RUNS, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace, clock_of

OWN_WORK = "recorder"  # the recorder's own work inside a step
_BUSY = 0.9  # of the CPU's time: a device that idles for less than the rest bounds a run, as in the verdict


class TimedParts(NamedTuple):
    """When each part began."""

    names: list[str]  # of parts: stages, `rest`, and `recorder`
    times: Times  # on the trace's clock, int64, ns, ascending, shape (n,)
    part: Rows  # what began, a position in `names`, shape (n,)

    def at(self, moments: Times) -> Rows:
        """The part at each moment, -1 before the first, the shape of `moments`."""
        return np.append(self.part, -1)[last_begun(self.times, moments)]

    def own_work_at(self, moments: Times) -> Mask:
        """Whether the recorder itself works at each moment, the shape of `moments`."""
        own = self.names.index(OWN_WORK) if OWN_WORK in self.names else len(self.names)
        return self.at(moments) == own


def timed_parts(metadata: Metadata) -> TimedParts | None:
    """The parts that a capture's recorder noted; None if it noted none."""
    changes = ((metadata.capture or {}).get("recorded_steps") or {}).get("changes")
    if not changes:
        return None
    after, part = (np.array(changes[name], np.int64) for name in ("after_ns", "part"))
    if not 0 < len(after) == len(part) or part.max() >= len(changes["parts"]):
        return None
    times = after + (changes["since_unix_ns"] - clock_of(metadata))
    return TimedParts(list(changes["parts"]), np.maximum.accumulate(times), part)


def with_parts_moved(metadata: Metadata, moved: Callable[[Times], Times]) -> dict[str, Any]:
    """The facts of a capture with its parts `moved` from its clock to another, ns; the trace's zero stays."""
    parts = timed_parts(metadata)
    capture = dict(metadata.capture)
    if parts is None:
        return capture
    times = moved(parts.times)
    changes = {
        **capture["recorded_steps"]["changes"],
        "since_unix_ns": int(times[0]) + clock_of(metadata),
        "after_ns": (times - times[0]).tolist(),
    }
    capture["recorded_steps"] = {**capture["recorded_steps"], "changes": changes}
    return capture


# -- runs

_SHORT_GAP = 0.01  # of the step
_SHORT_PYTHON_NS = 50_000  # of Python between two calls of the training loop
_CLIPPING_PYTHON_NS = 200_000  # before its first operator, which groups gradients; or as long as it works
_CALLED = ("data_loading", "forward", "zero_grad", "backward", "optimizer")  # each call is one part
_BETWEEN, _NO_PART = "rest", -2
_UNTIL_UPDATE = [STAGES.index(name) for name in ("forward", "loss", "zero_grad", "backward")]
_AFTER_FORWARD = [STAGES.index(name) for name in ("loss", "zero_grad", "backward", "optimizer")]
_OTHER = STAGES.index("other")
_COMPILED_STAGES = tuple(
    STAGES.index(name) for name in ("data_loading", "evaluation", "optimizer", "forward", "loss")
)
_BACKWARD, _OPTIMIZER = STAGES.index("backward"), STAGES.index("optimizer")
_NONE = -1


def find_runs(trace: Trace) -> Trace:
    """Fill the table `stages`: the thread of the training loop, split where its stage changes.

    docs/design/annotation.md, "Stages", says whose the time is in which that thread waits or does nothing.
    """
    timeline = _timeline(trace)
    pieces = [
        _runs_of_step(timeline, start, end)
        for start, end in zip(*(bound.tolist() for bound in _bounds(trace)), strict=True)
    ]
    count = [len(piece[0]) for piece in pieces]
    starts, ends, stage = (
        np.concatenate([piece[part] for piece in pieces]) if pieces else np.zeros(0, np.int64)
        for part in range(3)
    )
    step = np.repeat(trace["steps"]["step"], count)
    calls = optimizer_calls(trace, trace.events["track"] == main_track(trace))
    runs = split_by_optimizer(calls, step, starts, ends, stage)
    table = _table(trace, *_with_device_only(trace, *runs))
    return trace.with_table(name_optimizers(calls, table))


def _bounds(trace: Trace) -> tuple[Times, Times]:
    """Start and end of each step on the CPU: its window where threads of the CPU end its work."""
    steps = trace["steps"]
    on_threads = (steps["device_end_ns"] >= 0).any() and not device_work(trace).any()
    first, last = ("window_start_ns", "window_end_ns") if on_threads else ("start_ns", "end_ns")
    return steps[first], steps[last]


class _Timeline(NamedTuple):
    """The thread of the training loop; arrays of shape (n,)."""

    times: Times  # at which its stage changes, ns
    stages: Codes  # the stage from then on, -1 for none
    waits: Mask  # whether it waits then for what has ended


def _timeline(trace: Trace) -> _Timeline:
    events = trace.events
    main = main_track(trace)
    times, stages = _changes(trace, events["track"] == main)
    other_threads = on_host(trace) & (events["track"] != main)
    compiled = other_threads & ((events["scope"] >= 0) | events.text("name").where(loads_next_batch))
    rows_of = {stage: compiled & (events["stage"] == stage) for stage in _COMPILED_STAGES}
    rows_of[_BACKWARD] = other_threads & (events["stage"] == _BACKWARD)
    spans = {stage: Intervals(*events.spans(rows)) for stage, rows in rows_of.items()}
    of_loop = _calls_waits_and_work(trace, main)
    edges = [edge for span in (*spans.values(), *of_loop) for edge in (span.starts, span.ends)]
    parts = timed_parts(trace.metadata)
    edges += [parts.times] if parts else []
    moments = distinct(np.concatenate([times, *edges]))
    here = np.append(stages, _NONE)[last_begun(times, moments)]
    calls, waits, works = (span.cover(moments) for span in of_loop)
    runs_it = ((here == _OTHER) | ((calls | waits) & ~works)) & compiled.any()
    idle, decided = runs_it | (here == _NONE), np.zeros(len(moments), np.bool_)
    for stage, span in spans.items():
        if len(span):
            covered = idle & span.cover(moments)
            here[covered], decided = stage, decided | covered
    _fill_pauses(here, runs_it, decided, calls, waits)
    waited = waits_for_calls(trace, main).at(moments)
    ended = np.isin(here, [_OTHER, _NONE]) & (waited >= 0)
    here = np.where(ended, waited, here)
    return _Timeline(moments, _with_parts(moments, here, parts) if parts else here, ended)


def _with_parts(moments: Times, stage: Codes, parts: TimedParts) -> Codes:
    """The stages with gaps given to the part in which they lie, as if the recorder did not work."""
    step_runs = ~parts.own_work_at(moments)
    step_runs[:1] = True
    rows = np.flatnonzero(step_runs)
    length = np.diff(moments, append=moments[-1:])
    found = _with_gaps_filled(moments[rows], length[rows], stage[rows], parts)
    return found[np.cumsum(step_runs) - 1]


def _with_gaps_filled(moments: Times, length: Times, stage: Codes, parts: TimedParts) -> Codes:
    """The stage at each moment, until `length` later.

    Short gaps between the calls of the training loop are Python of the calls: of the loss after a
    model, else of the call that follows.
    """
    position = {name: place for place, name in enumerate(parts.names)}
    part = parts.at(moments)
    result = stage.copy()
    for name in _CALLED:
        inside = part == position.get(name, _NO_PART)
        result[inside & (stage == _NONE)] = STAGES.index(name)
    short = (result == _NONE) & (length <= _SHORT_PYTHON_NS)
    result[short & (part == position.get("loss", _NO_PART))] = STAGES.index("loss")
    before, after = np.roll(result, 1), np.roll(result, -1)
    rest = part == position.get(_BETWEEN, _NO_PART)
    clips = (before == _BACKWARD) & (after == _OPTIMIZER) & np.roll(rest, -1)
    ends, last = moments + length, np.flatnonzero(ends_run(rest))  # of runs of the rest, and of others
    clipping = ends[last[np.cumsum(begins_run(rest)) - 1]] - ends
    short |= clips & (result == _NONE) & (length <= np.maximum(clipping, _CLIPPING_PYTHON_NS))
    between = short & rest
    between &= np.isin(before, _UNTIL_UPDATE) & np.isin(after, _AFTER_FORWARD)
    between[:1] = between[-1:] = False
    return np.where(between, after, result)


def _calls_waits_and_work(trace: Trace, main: int) -> tuple[Intervals, ...]:
    """When the thread of the training loop calls a program, waits for one, and runs one itself.

    Calls in a range whose name tells their stage are part of that range. What compiles is no call.
    """
    events = trace.events
    names, here = events.text("name"), events["track"] == main
    outer = np.where(events["parent"] >= 0, events["stage"][events["parent"]], _NONE)
    named = (outer >= 0) & (outer != _OTHER) & ~names.where(is_compiled_call)[events["parent"]]
    calls = here & names.where(is_compiled_call) & ~named
    waits, works = here & names.where(is_wait), here & (events["scope"] >= 0)
    compiles = Intervals(*events.spans(here & names.where(lambda name: bool(COMPILING.search(name)))))
    spans = tuple(Intervals(*events.spans(rows)) for rows in (calls, waits, works))
    return (spans[0].minus(compiles), *spans[1:])


def _fill_pauses(stages: Codes, runs_it: Mask, decided: Mask, calls: Mask, waits: Mask) -> None:
    """Give pauses of the threads that run a program to the stage that they pause in.

    Threads start, meet each other and wake up the thread that waits for them: none of this is an
    event. A pause belongs to the stage before it, if the thread of the loop waits, or to the one
    after it, if that is the first; in a call, which also prepares a program, only to both.
    """
    runs_it = runs_it & (calls | waits)
    place = np.arange(len(stages))
    known = runs_it & decided
    begin = np.maximum.accumulate(np.where(~runs_it, place + 1, 0))
    end = np.minimum.accumulate(np.where(~runs_it, place, len(place))[::-1])[::-1]
    before = np.maximum.accumulate(np.where(known, place, -1))
    after = np.minimum.accumulate(np.where(known, place, len(place))[::-1])[::-1]
    before = np.where(before >= begin, before, -1)
    after = np.where(after < end, after, -1)
    around = np.append(stages, _NONE)
    chosen = np.where(before >= 0, around[before], around[after])
    belongs = waits | (around[before] == around[after])
    pause = runs_it & ~known & (chosen != _NONE) & belongs
    stages[pause] = chosen[pause]


def _with_device_only(
    trace: Trace, step: Ids32, starts: Times, ends: Times, stage: Codes
) -> tuple[Ids32, Times, Times, Codes]:
    """Add an empty run for each stage of a step that only occurs on the device."""
    events = trace.events
    work = device_work(trace) & (events["step"] >= 0) & (events["stage"] >= 0)
    key = events["step"][work].astype(np.int64) * len(STAGES) + events["stage"][work]
    missing = ~np.isin(key, step.astype(np.int64) * len(STAGES) + stage)
    keys, first = np.unique(key[missing], return_index=True)
    launched = at_launch(trace, events["start_ns"])[work][missing][first]
    step = np.concatenate([step, keys // len(STAGES)]).astype(np.int32)
    starts, ends = np.concatenate([starts, launched]), np.concatenate([ends, launched])
    stage = np.concatenate([stage, keys % len(STAGES)])
    order = np.lexsort((starts, step))
    return step[order], starts[order], ends[order], stage[order]


def _changes(trace: Trace, on_track: Mask) -> tuple[Times, Codes]:
    """The stage of a track over time: an event sets its stage, its end restores the outer one.

    A range whose name tells no stage has none if any thread runs backward in it: it is around both passes.
    """
    events = trace.events
    stage = events["stage"].astype(np.int64)
    unnamed = events.text("name").where(lambda name: stage_of_range(name) is None)
    unnamed &= on_track & (stage != _BACKWARD) & events.text("category").mask("annotation")
    ranges, backward = np.flatnonzero(unnamed), events["start_ns"][(stage == _BACKWARD) & on_host(trace)]
    stage[ranges[count_within(backward, *events.spans(ranges)) > 0]] = _NONE
    outer = np.where(events["parent"] >= 0, stage[events["parent"]], _NONE)
    edge = np.flatnonzero(on_track & (stage >= 0) & (stage != outer))
    start, end = events.spans(edge)
    times = np.concatenate([start, end])
    values = np.concatenate([stage[edge], outer[edge]])
    # At equal times: ends before starts, inner ends before outer, outer starts before inner.
    rank = np.concatenate([np.arange(len(edge)), -1 - np.arange(len(edge))])
    order = np.lexsort((rank, times))
    return times[order], values[order]


def _runs_of_step(timeline: _Timeline, start: int, end: int) -> tuple[Times, Times, Codes]:
    times, stages, waits = timeline
    first, last = np.searchsorted(times, [start, end], side="left")
    at = np.concatenate([[start], times[first:last]]).astype(np.int64)
    before = int(np.searchsorted(times, start, side="right")) - 1
    here = np.append(stages[before] if before >= 0 else _NONE, stages[first:last])
    waiting = np.append(before >= 0 and waits[before], waits[first:last])
    return _merged(at, _close_gaps(at, here, end, waiting), end)


def _close_gaps(at: Times, stage: Codes, end: int, waiting: Mask) -> Codes:
    """The stages with each gap given to a neighbor, or `other`.

    A gap goes to the run before it if the run after it is of the same stage, or if it is short and none
    follows; to the run after it if it is short. Gaps may follow each other: then what becomes of the first is
    before the second. Before and after a wait for what has ended, the loop does something else.
    """
    length = np.diff(np.append(at, end))
    gap = np.flatnonzero(stage == _NONE)
    short = (length <= _SHORT_GAP * max(end - int(at[0]), 1))[gap]
    around = np.concatenate([[_NONE], stage, [_NONE]])
    after = around[gap + 2]
    before = _before_gaps(gap, short, around)
    aside = np.concatenate([[False], waiting, [False]])
    same = (before == after) & ~aside[gap] & ~aside[gap + 2]
    keeps = (same & (after != _NONE)) | (short & (after == _NONE) & (before != _NONE))
    result = stage.copy()
    result[gap] = np.where(keeps, before, np.where(short & (after != _NONE), after, _OTHER))
    return result


def _before_gaps(gap: Rows, short: Mask, around: Codes) -> Codes:
    """The stage before each gap; in a row of gaps, what becomes of the gap before it."""
    is_first = np.diff(gap, prepend=-2) > 1
    row = np.cumsum(is_first) - 1
    before_row: Codes = around[gap[is_first]][row]
    long = np.cumsum(~short)
    in_row: Codes = long - (long - ~short)[is_first][row]
    becomes = np.where((before_row == _NONE) | (in_row > 0), _OTHER, before_row)
    return np.where(is_first, before_row, np.roll(becomes, 1))


def _merged(at: Times, stage: Codes, end: int) -> tuple[Times, Times, Codes]:
    keep = np.flatnonzero(begins_run(stage))
    starts = at[keep]
    ends = np.append(starts[1:], end)
    real = ends > starts
    return starts[real], ends[real], stage[keep][real]


def _table(trace: Trace, step: Ids32, starts: Times, ends: Times, stage: Codes) -> Table:
    device, run = _device_work(trace, step, starts, stage)
    begin, finish = trace.events.spans(device)
    busy = grouped_union(run, begin, finish, len(starts))
    sums = trace.events.text("category").mask("communication")[device]
    communication = grouped_union(run[sums], begin[sums], finish[sums], len(starts))
    first, last = np.full(len(starts), 2**62, np.int64), np.full(len(starts), -1, np.int64)
    np.minimum.at(first, run, begin)
    np.maximum.at(last, run, finish)
    work = np.flatnonzero(device_work(trace))
    blocked = time_blocked(trace, work)
    meanwhile = (blocked, *map(blocked.intersect, busy_times(trace, work)))
    waits, computed, summed = (spans.within(starts, ends) for spans in meanwhile)
    worked = computed + summed
    communication = np.where(worked > busy, summed, communication)  # it waits for work of other stages too
    bound = _bound(ends - starts - waits, np.maximum(busy, worked), communication, waits - worked, stage)
    if work_is_missing(trace):
        bound[bound != BOUNDS.index("data")] = _NONE
    columns: dict[str, Any] = {
        "step": step,
        "rank": np.full(len(starts), trace.metadata.ranks[0]),
        "stage": Text(stage.astype(np.int8), STAGES),
        "start_ns": starts,
        "end_ns": ends,
        "cpu_ns": ends - starts,
        "device_ns": busy,
        "device_start_ns": np.where(last >= 0, first, -1),
        "device_end_ns": last,
        "bound_by": Text(bound, BOUNDS),
    }
    return Table(STAGE_RUNS, columns)


def _device_work(trace: Trace, step: Ids32, starts: Times, stage: Codes) -> tuple[Rows, Rows]:
    """Device work, and its run: the last run of its step and stage that began before its launch."""
    events = trace.events
    device = np.flatnonzero(device_work(trace) & (events["step"] >= 0) & (events["stage"] >= 0))
    launched = at_launch(trace, events["start_ns"])[device]
    wanted = events["step"][device].astype(np.int64) * len(STAGES) + events["stage"][device]
    moments = np.sort(starts)
    begun, until = (np.searchsorted(moments, times, side="right") for times in (starts, launched))
    run = last_of_key(step.astype(np.int64) * len(STAGES) + stage, begun, wanted, until)
    return device[run >= 0], run[run >= 0]


def _bound(cpu: Times, device: Times, communication: Times, idle: Times, stage: Codes) -> Codes8:
    """What bounds each run: data, the CPU, computing on the device, or communication; -1 if not known.

    The time of the CPU is that in which it does not wait for the device, which may be `idle` then.
    """
    by_device = (device > 0) & ((device >= cpu) | (device > _BUSY * cpu))
    bound = np.where(by_device, BOUNDS.index("device"), BOUNDS.index("cpu"))
    bound[by_device & (2 * communication > device)] = BOUNDS.index("communication")
    bound[idle > np.maximum(cpu, device)] = _NONE
    bound[stage == STAGES.index("data_loading")] = BOUNDS.index("data")
    return bound.astype(np.int8)
