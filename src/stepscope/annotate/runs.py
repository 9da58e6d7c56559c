"""The unbroken runs of each stage within each step: the table `stages`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.steps import main_track
from stepscope.annotate.tracks import device_work, on_host
from stepscope.trace.intervals import Intervals, grouped_union
from stepscope.trace.order import begins_run
from stepscope.trace.schema import BOUNDS, STAGE_RUNS, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Times = NDArray[np.int64]
Codes = NDArray[np.int64]
_SHORT_GAP = 0.01
_OTHER = STAGES.index("other")
_BESIDE = tuple(STAGES.index(name) for name in ("optimizer", "forward", "loss"))
_BACKWARD = STAGES.index("backward")
_NONE = -1


def find_runs(trace: Trace) -> Trace:
    """Fill the table of stages: the training loop's thread, cut where its stage changes.

    While that thread waits, the threads that run autograd tell, or those that run what was
    compiled. A gap between two runs belongs to the next one if it is short (1 % of the step), else
    it is a run of `other`. A stage that runs on the device alone, as those of a compiled step do,
    is a run without length on the CPU.
    """
    times, stages = _timeline(trace)
    pieces = [
        _runs_of_step(times, stages, int(start), int(end))
        for start, end in zip(trace["steps"]["start_ns"], trace["steps"]["end_ns"], strict=True)
    ]
    count = [len(piece[0]) for piece in pieces]
    starts, ends, stage = (
        np.concatenate([piece[part] for piece in pieces]) if pieces else np.zeros(0, np.int64)
        for part in range(3)
    )
    step = np.repeat(trace["steps"]["step"], count)
    return trace.with_table(_table(trace, *_with_device_only(trace, step, starts, ends, stage)))


def _timeline(trace: Trace) -> tuple[Times, Codes]:
    """Moments at which the stage changes, and the stage from each on (-1 for none)."""
    events = trace.events
    main = main_track(trace)
    times, stages = _changes(trace, events["track"] == main)
    beside = on_host(trace) & (events["track"] != main)
    compiled = beside & (events["scope"] >= 0)
    told = {stage: compiled & (events["stage"] == stage) for stage in _BESIDE}
    told[_BACKWARD] = beside & (events["stage"] == _BACKWARD)
    spans = {stage: _spans(events, rows) for stage, rows in told.items()}
    edges = [edge for one in spans.values() for edge in (one.starts, one.ends)]
    moments = distinct(np.concatenate([times, *edges]))
    here = _value_at(times, stages, moments)
    idle = here == _NONE
    idle |= (here == _OTHER) & compiled.any()  # the call that runs it and waits for it
    for stage, span in spans.items():
        here[idle & (span.within(moments, moments + 1) > 0)] = stage
    return moments, here


def _spans(events: Table, rows: NDArray[np.bool_]) -> Intervals:
    start = events["start_ns"][rows]
    return Intervals(start, start + events["duration_ns"][rows])


def _with_device_only(
    trace: Trace, step: NDArray[np.int32], starts: Times, ends: Times, stage: Codes
) -> tuple[NDArray[np.int32], Times, Times, Codes]:
    """The runs, and one without length for each stage of a step that only its device work has."""
    events = trace.events
    caller = launch_of(trace)
    work = device_work(trace) & (events["step"] >= 0) & (events["stage"] >= 0)
    called = np.where(caller >= 0, events["start_ns"][caller], events["start_ns"])
    key = events["step"][work].astype(np.int64) * len(STAGES) + events["stage"][work]
    missing = ~np.isin(key, step.astype(np.int64) * len(STAGES) + stage)
    keys, first = np.unique(key[missing], return_index=True)
    launched = called[work][missing][first]
    step = np.concatenate([step, keys // len(STAGES)]).astype(np.int32)
    starts, ends = np.concatenate([starts, launched]), np.concatenate([ends, launched])
    stage = np.concatenate([stage, keys % len(STAGES)])
    order = np.lexsort((starts, step))
    return step[order], starts[order], ends[order], stage[order]


def _changes(trace: Trace, on_track: NDArray[np.bool_]) -> tuple[Times, Codes]:
    """A track's stage over time: an event sets its own, and its end restores the one around it."""
    events = trace.events
    stage = events["stage"].astype(np.int64)
    outer = np.where(events["parent"] >= 0, stage[events["parent"]], _NONE)
    edge = np.flatnonzero(on_track & (stage >= 0) & (stage != outer))
    start, end = events["start_ns"][edge], (events["start_ns"] + events["duration_ns"])[edge]
    times = np.concatenate([start, end])
    values = np.concatenate([stage[edge], outer[edge]])
    # At one moment ends come before starts, inner ends before outer, outer starts before inner.
    rank = np.concatenate([np.arange(len(edge)), -1 - np.arange(len(edge))])
    order = np.lexsort((rank, times))
    return times[order], values[order]


def _value_at(times: Times, values: Codes, moments: Times) -> Codes:
    index = np.searchsorted(times, moments, side="right") - 1
    return np.where(index >= 0, values[index] if len(values) else _NONE, _NONE)


def _runs_of_step(times: Times, stages: Codes, start: int, end: int) -> tuple[Times, Times, Codes]:
    first, last = np.searchsorted(times, [start, end], side="left")
    at = np.concatenate([[start], times[first:last]]).astype(np.int64)
    here = np.concatenate([_value_at(times, stages, np.array([start])), stages[first:last]])
    return _merged(at, _close_gaps(at, here, end), end)


def _close_gaps(at: Times, stage: Codes, end: int) -> Codes:
    length = np.diff(np.append(at, end))
    short = length <= _SHORT_GAP * max(end - int(at[0]), 1)
    result = stage.copy()
    for index in np.flatnonzero(stage == _NONE).tolist():
        before = result[index - 1] if index else _NONE
        after = stage[index + 1] if index + 1 < len(stage) else _NONE
        if before == after != _NONE or (short[index] and after == _NONE != before):
            result[index] = before
        else:
            result[index] = after if short[index] and after != _NONE else _OTHER
    return result


def _merged(at: Times, stage: Codes, end: int) -> tuple[Times, Times, Codes]:
    keep = np.flatnonzero(begins_run(stage))
    starts = at[keep]
    ends = np.append(starts[1:], end)
    real = ends > starts
    return starts[real], ends[real], stage[keep][real]


def _table(
    trace: Trace, step: NDArray[np.int32], starts: Times, ends: Times, stage: Codes
) -> Table:
    device, run = _device_work(trace, step, starts, stage)
    begin = trace.events["start_ns"][device]
    finish = begin + trace.events["duration_ns"][device]
    busy = grouped_union(run, begin, finish, len(starts))
    speaks = trace.events.text("category").mask("communication")[device]
    spoken = grouped_union(run[speaks], begin[speaks], finish[speaks], len(starts))
    first, last = np.full(len(starts), 2**62, np.int64), np.full(len(starts), -1, np.int64)
    np.minimum.at(first, run, begin)
    np.maximum.at(last, run, finish)
    return Table(
        STAGE_RUNS,
        {
            "step": step,
            "rank": np.full(len(starts), trace.metadata.ranks[0]),
            "stage": Text(stage.astype(np.int8), STAGES),
            "start_ns": starts,
            "end_ns": ends,
            "cpu_ns": ends - starts,
            "device_ns": busy,
            "device_start_ns": np.where(last >= 0, first, -1),
            "device_end_ns": last,
            "bound_by": Text(_bound(ends - starts, busy, spoken, stage), BOUNDS),
        },
    )


def _device_work(
    trace: Trace, step: NDArray[np.int32], starts: Times, stage: Codes
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Device work with a run of its step and stage: the last that began before its launch."""
    events = trace.events
    caller = launch_of(trace)
    device = np.flatnonzero(device_work(trace) & (events["step"] >= 0) & (events["stage"] >= 0))
    groups: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(step.tolist(), stage.tolist(), strict=True)):
        groups.setdefault(key, []).append(row)
    run = np.full(len(device), -1, np.intp)
    launched = np.where(caller >= 0, events["start_ns"][caller], events["start_ns"])[device]
    of_step, of_stage = events["step"][device], events["stage"][device]
    for (one_step, one_stage), rows in groups.items():
        mine = np.flatnonzero((of_step == one_step) & (of_stage == one_stage))
        index = np.searchsorted(starts[rows], launched[mine], side="right") - 1
        run[mine] = np.array(rows)[np.maximum(index, 0)]
    return device[run >= 0], run[run >= 0]


def _bound(cpu: Times, device: Times, communication: Times, stage: Codes) -> NDArray[np.int8]:
    """What sets a run's length: data, the CPU, or the device, by computing or by communicating."""
    bound = np.where(device >= cpu, BOUNDS.index("device"), BOUNDS.index("cpu"))
    speaks = (device >= cpu) & (2 * communication > device)
    bound[speaks] = BOUNDS.index("communication")
    bound[stage == STAGES.index("data_loading")] = BOUNDS.index("data")
    return bound.astype(np.int8)
