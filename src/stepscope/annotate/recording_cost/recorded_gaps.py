"""Where recording takes its time: in the gaps before an operator starts and after it ends.

torch.profiler reads the clock last when an operator starts, and first when it ends. So its work is
not part of the operator, but of whatever is around it.

Source: PyTorch, torch/csrc/profiler/collection.cpp (`begin_op`) and
torch/csrc/autograd/profiler_kineto.cpp (`onFunctionExit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.names.range_names import is_step
from stepscope.annotate.recording_cost.part_costs import MOST_NS, WHOLE
from stepscope.annotate.steps.steps import main_track
from stepscope.arrays import Floats, Mask, Rows, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

_BEFORE, _AFTER = 0.7, 0.3  # of the cost: shapes and names are collected before the start
_KEPT = 0.05  # of each stretch of time, so that the order of events holds
_ROUNDS = 60  # of halving: to the last bit of a time


class Stretches(NamedTuple):
    """The time of the training loop, cut where an event starts or ends or the stage changes.

    Attributes:
        bounds: int64, ns, ascending, shape (n + 1,).
        events: recorded events whose cost falls in each, shape (n,).
        stage: code of the stage, -1 outside the steps, shape (n,).
        step: index of the step that began last, -1 before the first, shape (n,).
        between_steps: whether the recorder itself ran, after one step and before the next.
    """

    bounds: Times
    events: Floats
    stage: Rows
    step: Rows
    between_steps: Mask


def stretches_of(trace: Trace) -> Stretches:
    """Cut the time of the training loop of a trace with the table `stages`."""
    rows = np.flatnonzero(loop_events(trace))
    start = trace.events["start_ns"][rows]
    end = start + trace.events["duration_ns"][rows]
    runs = trace["stages"]
    bounds = distinct(np.concatenate([start, end, runs["start_ns"], runs["end_ns"]]))
    size = len(bounds)
    before = np.bincount(np.searchsorted(bounds, start), minlength=size)[1:]
    after = np.bincount(np.searchsorted(bounds, end), minlength=size)[:-1]
    marks = trace.events.text("name").take(rows).where(is_step)
    outside = Intervals(start[marks], end[marks]).within(bounds[:-1], bounds[1:]) == 0
    stage = _stages_at(trace, bounds[:-1])
    between = outside & (stage >= 0) if marks.any() else np.zeros(size - 1, np.bool_)
    step = np.searchsorted(trace["steps"]["start_ns"], bounds[:-1], side="right") - 1
    return Stretches(bounds, _BEFORE * before + _AFTER * after, stage, step, between)


def loop_events(trace: Trace) -> Mask:
    """Events of the thread of the training loop, and of backward on other threads."""
    events = trace.events
    backward = on_host(trace) & (events["stage"] == STAGES.index("backward"))
    inside = events["step"] >= 0
    result: Mask = inside & ((events["track"] == main_track(trace)) | backward)
    return result


def _stages_at(trace: Trace, times: Times) -> Rows:
    runs = trace["stages"].take(np.argsort(trace["stages"]["start_ns"], kind="stable"))
    runs = runs.take(runs["end_ns"] > runs["start_ns"])
    run = np.searchsorted(runs["start_ns"], times, side="right") - 1
    if not len(runs):
        return np.full(len(times), -1, np.intp)
    inside = (run >= 0) & (times < runs["end_ns"][run])
    return np.where(inside, runs["stage"][run], -1).astype(np.intp)


def with_hidden_cost(
    stretches: Stretches, costs: Mapping[str, float], blocked_ns: float, steps: int
) -> dict[str, float]:
    """Costs in which a wait for the device in `rest` does not hide what its events cost.

    The step then is no longer, but its CPU work is. Events in `rest` cost what others cost, as far
    as the wait was long enough to hide it.

    Args:
        stretches: of the trace.
        costs: per step and stage, ns.
        blocked_ns: how long the CPU waits for a device, all steps together.
        steps: how many steps there are.
    """
    events = {name: float(stretches.events[part].sum()) for name, part in _parts(stretches, costs)}
    named = [name for name in costs if name != WHOLE]
    known = sum(events[name] for name in named)
    if WHOLE not in costs or not known:
        return dict(costs)
    expected = events[WHOLE] * sum(costs[name] for name in named) / known
    hidden = min(max(expected - costs[WHOLE], 0.0), blocked_ns / steps)
    return {**costs, WHOLE: costs[WHOLE] + hidden}


def removed_time(stretches: Stretches, costs: Mapping[str, float], steps: int) -> Floats:
    """How much of each stretch of time recording took, ns, shape (n,).

    Between steps it took all. Within a stage all events cost the same, but a stretch has no more to
    give than its length. What the gaps of a step cannot give, since recording also slows operators,
    is taken from all its time alike. Costs are medians, thus of a step with the median number of
    events: one that begins with a rollout has more events and costs more.

    Args:
        stretches: of the trace.
        costs: per step and stage, ns, as `part_costs` gives them.
        steps: how many steps there are.
    """
    room = (1 - _KEPT) * np.diff(stretches.bounds).astype(np.float64)
    removed = np.zeros(len(room))
    for name, chosen in _parts(stretches, costs):
        typical = _typical_events(stretches, chosen, steps)
        for step in np.unique(stretches.step[chosen]).tolist():
            here = np.flatnonzero(chosen & (stretches.step == step))
            events = stretches.events[here]
            share = float(events.sum()) / typical if typical else 1.0
            total = min(costs[name] * share, MOST_NS * float(events.sum()))
            removed[here] = _shared(events, room[here], total)
    return np.where(stretches.between_steps, room, removed)


def _typical_events(stretches: Stretches, chosen: Mask, steps: int) -> float:
    """The median over the steps of the events in chosen stretches."""
    chosen = chosen & (stretches.step >= 0)
    each = np.bincount(stretches.step[chosen], stretches.events[chosen], minlength=steps)
    return float(np.median(each))


def _parts(stretches: Stretches, costs: Mapping[str, float]) -> list[tuple[str, Mask]]:
    inside = ~stretches.between_steps
    named = {
        name: inside & (stretches.stage == STAGES.index(name)) for name in costs if name != WHOLE
    }
    rest = inside & (stretches.stage >= 0)
    for chosen in named.values():
        rest = rest & ~chosen
    return [*named.items(), *([(WHOLE, rest)] if WHOLE in costs else [])]


def _shared(events: Floats, room: Floats, total: float) -> Floats:
    """The same time for each event, at most the room of its stretch, that adds up to `total`."""
    low, high = 0.0, float((room / np.maximum(events, _AFTER)).max(initial=0))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        enough = np.minimum(middle * events, room).sum() > total
        low, high = (low, middle) if enough else (middle, high)
    given = np.minimum(high * events, room)
    left = room - given
    missing = max(min(total - float(given.sum()), float(left.sum())), 0.0)
    return given + left * (missing / max(float(left.sum()), 1.0))
