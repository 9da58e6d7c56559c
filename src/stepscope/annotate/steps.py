"""Where each training step begins and ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.call_turns import call_starts, is_compiled_call, turns_by_calls
from stepscope.annotate.launches import launch_of
from stepscope.annotate.marks import is_recorded_step, is_step, step_number
from stepscope.annotate.tracks import device_work, marked_on_devices, on_host
from stepscope.errors import TraceError
from stepscope.trace.intervals import grouped_union
from stepscope.trace.schema import STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#|^## optimizer ##$")
_REGULAR = 0.9
_LEAST_EVENTS = 8
_CUT_OFF = 0.02
_NOTABLE = 0.1
_UNLIKE = 0.5  # a last turn that differs by more is cut off, or holds what came after the loop
Bounds = NDArray[np.int64]


def find_steps(trace: Trace) -> Trace:
    """Fill the table of steps, and the step of every event.

    The steps are the recorder's own, torch.profiler's or JAX's; otherwise each ends with the
    optimizer that steps least often, or with the compiled function that trains; otherwise they are
    the repeats of a pattern of top-level work; otherwise all is one step.
    CPU events belong to the step in which they start, device work to that of its launch; where
    only a device marks the steps, to the one in which it starts.

    Source: HOTLINE section 4.2, widened.
    """
    ways = (_by_profiler, _by_optimizer, _by_calls, _by_pattern, _whole)
    numbers, starts, ends, evidence = next(found for way in ways if (found := way(trace)))
    whole = _whole_steps(starts, ends)
    numbers, starts, ends = numbers[whole], starts[whole], ends[whole]
    if not whole.all():
        said = "a step that the recording cut off (no work, or hardly any time) is left out"
        trace = trace.with_warnings([("cut_off_step", said, int((~whole).sum()))])
    step = _step_of_events(trace, starts, ends)
    trace = trace.with_events(step=np.where(step < 0, -1, numbers[step]))
    trace = trace.with_table(_table(trace, step, numbers, starts, ends, evidence))
    trace = _tell_of_work_outside(trace)
    return trace if evidence in ("profiler_step", "optimizer") else _tell(trace, evidence)


def require_steps(trace: Trace, instead: str = "") -> None:
    """Refuse a trace that holds no step, with the reason why it holds none.

    Args:
        trace: annotated.
        instead: what to do with the contexts of a whole run; by default to print them.

    Raises:
        TraceError: if there is no step.
    """
    if len(trace["steps"]):
        return
    source = trace.metadata.source
    why = trace.metadata.capture.get("message") or "it holds no event that lasts"
    if len(trace["contexts"]):
        instead = instead or f"see `stepscope contexts {source}`"
        why = f"it holds the contexts of a whole run; {instead}"
    raise TraceError(f"{source}: expected at least one recorded step, found none: {why}")


def ranks_with_steps(trace: Trace) -> tuple[int, ...]:
    """The ranks that have a step: one that failed early may have none; all where no rank has."""
    found = set(trace["steps"]["rank"].tolist())
    return tuple(rank for rank in trace.metadata.ranks if rank in found) or trace.metadata.ranks


def main_track(trace: Trace) -> int:
    """The CPU track of the training loop: where the profiler's steps are, else the busiest."""
    events = trace.events
    on_cpu = on_host(trace)
    marks = events.text("name").where(is_step)
    named = on_cpu & marks
    if not named.any() and marks.any():
        return int(events["track"][marks][0])
    if not named.any():
        named = on_cpu & events.text("name").where(is_compiled_call)
    if not named.any():
        named = on_cpu & events.text("category").mask("cpu_op", "python", "runtime")
        works = on_cpu & events.text("category").mask("cpu_op", "runtime")
        if works.any():  # a thread that only waits is in its frames all the while
            named &= np.isin(events["track"], np.unique(events["track"][works]))
    if not named.any():
        named = on_cpu if on_cpu.any() else np.ones(len(events), np.bool_)
    weight = np.bincount(events["track"][named], events["self_ns"][named] + 1.0)
    return int(weight.argmax()) if len(weight) else 0


def _by_profiler(trace: Trace) -> tuple[Bounds, Bounds, Bounds, str] | None:
    rows = _named(trace, is_recorded_step)
    rows = rows if len(rows) else _named(trace, is_step)
    if not len(rows):
        return None
    names = trace.events.text("name")
    numbers = np.array([step_number(names[row] or "") for row in rows])
    start = call_starts(trace, rows)
    end = start + trace.events["duration_ns"][rows]
    # The profiler closes one step's range just before it opens the next; the step lasts till then.
    follows = np.append(np.diff(numbers) == 1, False)
    end = np.where(follows, np.append(start[1:], 0), end)
    # One more may be marked: the profiler's end cuts that one off.
    recorded = trace.metadata.capture.get("steps_recorded") or numbers
    kept = np.isin(numbers, recorded)
    return (numbers[kept], start[kept], end[kept], "profiler_step") if kept.any() else None


def _by_optimizer(trace: Trace) -> tuple[Bounds, Bounds, Bounds, str] | None:
    rows = _named(trace, lambda name: bool(_OPTIMIZER_STEP.match(name)))
    names = [trace.events.text("name")[row] for row in rows]
    if not names:
        return None
    # With several optimizers, the one that steps least often ends the step; the last of these.
    counts = Counter(names)
    anchor = min(reversed(names), key=lambda name: counts[name])
    last = rows[[name == anchor for name in names]]
    ends = trace.events["start_ns"][last] + trace.events["duration_ns"][last]
    first = trace.events["start_ns"][trace.events["track"] == main_track(trace)].min()
    starts = np.append(first, ends[:-1])
    return np.arange(len(ends)), starts, ends, "optimizer"


def _by_calls(trace: Trace) -> tuple[Bounds, Bounds, Bounds, str] | None:
    """From one call of the function that trains to the next."""
    track = main_track(trace)
    turns = turns_by_calls(trace, track)
    if turns is None or len(turns.starts) < 2:
        return None
    here = trace.events["track"] == track
    end = (trace.events["start_ns"] + trace.events["duration_ns"])[here].max()
    ends = np.append(turns.starts[1:], end)
    length = ends - turns.starts
    usual = np.median(length[:-1])
    whole = turns.last_is_whole and abs(length[-1] - usual) < _UNLIKE * usual
    count = len(ends) if whole else len(ends) - 1
    return np.arange(count), turns.starts[:count], ends[:count], "compiled_call"


def _by_pattern(trace: Trace) -> tuple[Bounds, Bounds, Bounds, str] | None:
    """Repeats of the sequence of top-level events on the main track."""
    events = trace.events
    top = np.flatnonzero((events["track"] == main_track(trace)) & (events["parent"] < 0))
    codes = events["name"][top]
    period = _period(codes)
    if period is None:
        return None
    starts = events["start_ns"][top[::period]]
    whole = len(codes) // period
    last = events["start_ns"][top] + events["duration_ns"][top]
    ends = np.append(starts[1:whole], last[: whole * period].max())
    return np.arange(whole), starts[:whole], ends, "pattern"


def _period(codes: NDArray[np.integer]) -> int | None:
    """The shortest period after which nearly all of the sequence repeats, at least twice."""
    if len(codes) < _LEAST_EVENTS:
        return None
    first = np.flatnonzero(codes == codes[0])
    for period in first[first >= 2].tolist():
        if 2 * period > len(codes):
            return None
        if (codes[period:] == codes[:-period]).mean() >= _REGULAR:
            return int(period)
    return None


def _whole(trace: Trace) -> tuple[Bounds, Bounds, Bounds, str]:
    events = trace.events
    rows = events["track"] == main_track(trace)
    if not rows.any():
        rows = np.ones(len(events), np.bool_)
    start = int(events["start_ns"][rows].min(initial=np.iinfo(np.int64).max)) if len(events) else 0
    end = int((events["start_ns"][rows] + events["duration_ns"][rows]).max(initial=0))
    return np.zeros(1, np.int64), np.array([start]), np.array([end]), "whole_trace"


def _whole_steps(starts: Bounds, ends: Bounds) -> NDArray[np.bool_]:
    """Steps that last as a step does: a profiler's last range often holds no step."""
    length = ends - starts
    whole: NDArray[np.bool_] = length >= _CUT_OFF * np.median(length)
    return whole


def _named(trace: Trace, test: Callable[[str], bool]) -> NDArray[np.int64]:
    """Annotations of this name on the main track, in order."""
    events = trace.events
    wanted = events.text("name").where(test)
    wanted &= events["track"] == main_track(trace)
    return np.flatnonzero(wanted)


def _step_of_events(trace: Trace, starts: Bounds, ends: Bounds) -> NDArray[np.intp]:
    """Index of the step of each event, or -1."""
    begin = trace.events["start_ns"]
    caller = launch_of(trace)
    device = ~on_host(trace)
    index = np.searchsorted(starts, begin, side="right") - 1
    inside = (index >= 0) & (begin < ends[np.maximum(index, 0)])
    step = np.where(inside, index, -1)
    if marked_on_devices(trace):
        return step
    launched = np.where(caller >= 0, step[caller], -1)
    return np.where(device, launched, step)


def _table(
    trace: Trace, step: NDArray[np.intp], numbers: Bounds, starts: Bounds, ends: Bounds, why: str
) -> Table:
    events = trace.events
    work = device_work(trace) & (step >= 0)
    begin, group = events["start_ns"][work], step[work]
    finish = begin + events["duration_ns"][work]
    last = np.full(len(numbers), -1, np.int64)
    np.maximum.at(last, group, finish)
    return Table(
        STEPS,
        {
            "step": numbers,
            "rank": np.full(len(numbers), trace.metadata.ranks[0]),
            "start_ns": starts,
            "end_ns": ends,
            "device_end_ns": last,
            "device_busy_ns": grouped_union(group, begin, finish, len(numbers)),
            "evidence": Text.constant(why, len(numbers)),
        },
    )


def _tell_of_work_outside(trace: Trace) -> Trace:
    """Warn where threads run much of what was compiled after the step that asked for it has ended.

    JAX returns before its work is done. A launch on a device tells the step; on a CPU nothing does.
    A capture waits for it (docs/capture.md); what it holds beside its steps is not theirs.
    """
    events = trace.events
    if events.text("name").where(is_recorded_step).any():
        return trace
    compiled = on_host(trace) & (events["scope"] >= 0)
    outside = events["self_ns"][compiled & (events["step"] < 0)].sum()
    whole = events["self_ns"][compiled].sum()
    if outside <= _NOTABLE * whole:
        return trace
    said = (
        f"{outside / 1e6:.3f} of {whole / 1e6:.3f} ms of compiled work on the CPU runs outside the "
        "steps and belongs to none; wait for it in each step (`jax.block_until_ready`)"
    )
    return trace.with_warnings([("work_outside_steps", said, 1)])


def _tell(trace: Trace, evidence: str) -> Trace:
    said = {
        "compiled_call": "the file marks no step; each lasts from one call of the function under "
        "jax.jit that trains to the next",
        "pattern": "the file marks no step; steps are the repeats of a pattern of operators",
        "whole_trace": "the file marks no step and repeats nothing; all of it is taken as one step",
    }[evidence]
    return trace.with_warnings([("steps_inferred", said, 1)])
