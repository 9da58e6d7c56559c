"""Where recording takes its time: in the gaps before an operator starts and after it ends.

torch.profiler reads the clock last when an operator starts, and first when it ends. So its work is
not part of the operator, but of whatever is around it. XLA's events cost time at the same places,
on all threads that do the work of a step.

Source: PyTorch, torch/csrc/profiler/collection.cpp (`begin_op`) and
torch/csrc/autograd/profiler_kineto.cpp (`onFunctionExit`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Mask, Rows, Times
from stepscope.facts.annotate.links.launches import device_work, on_host
from stepscope.facts.annotate.range_names import is_step
from stepscope.facts.annotate.stages.stage_runs import timed_parts
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.correct.costs import MOST_NS, WHOLE, in_jax
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import last_begun, running_span
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

_BEFORE, _AFTER = 0.7, 0.3  # of the cost: shapes and names are collected before the start
_KEPT = 0.05  # of each stretch of time, so that the order of events holds
_OWN_KEPT = 0.001  # of the recorder's own work
_BY_TIMING = 2  # events that cost as much as the clocks read where a part begins and ends
_FAULTS_OF_PAGE = 3  # a new page costs at most as much as so many faults
_MANY = 0.1  # of the events of a step: the cost of each is known from such a part
_ALIKE = 0.5  # of the typical events: a step with more or fewer by this share does other work
_MANY_STEPS = 1 / 3  # from about half on, a median may be of either work
_MOST_TIMES = 4  # that recording makes a part as long: more is what unrecorded steps did not do
_LEAST_NS = 1_000.0  # per event: recording costs 1 to 6 µs (benchmarks/recording_cost.py)
_ROUNDS = 60  # of halving: to the last bit of a time


class Stretches(NamedTuple):
    """The time of the training loop, cut where an event starts or ends or the stage changes."""

    bounds: Times  # int64, ns, ascending, shape (n + 1,)
    events: Floats  # recorded events whose cost falls in each, shape (n,)
    part: Rows  # position among the parts whose cost is known, -1 outside of them, shape (n,)
    step: Rows  # index of the step that began last, -1 before the first, shape (n,)
    own_work: Mask  # whether the recorder itself ran: between two steps, and where it noted so


def stretches_of(trace: Trace, costs: Sequence[str]) -> Stretches:
    """Cut the time of the training loop of a trace with the table `stages`.

    `costs` are the parts whose cost is known; `rest` has what is in none of the others.
    """
    rows = np.flatnonzero(loop_events(trace))
    start, end = trace.events.spans(rows)
    runs, parts = trace["stages"], timed_parts(trace.metadata)
    changes = parts.times if parts else np.zeros(0, np.int64)
    bounds = distinct(np.concatenate([start, end, runs["start_ns"], runs["end_ns"], changes]))
    size = len(bounds)
    before = np.bincount(np.searchsorted(bounds, start), minlength=size)[1:]
    after = np.bincount(np.searchsorted(bounds, end), minlength=size)[:-1]
    marks = trace.events.text("name").take(rows).where(is_step)
    outside = Intervals(start[marks], end[marks]).within(bounds[:-1], bounds[1:]) == 0
    stage = _stages_at(trace, bounds[:-1])
    has_ranges = marks.any() and not in_jax(trace)  # JAX's marks lie within a step
    own = outside & (stage >= 0) if has_ranges else np.zeros(size - 1, np.bool_)
    if parts:
        own |= parts.own_work_at(bounds[:-1]) & (stage >= 0)
    names, code = (parts.names, parts.at(bounds[:-1])) if parts else (list(STAGES), stage)
    part = np.where((stage >= 0) & ~own, _positions(names, costs)[code], -1)
    begins = trace["steps"]["window_start_ns" if in_jax(trace) else "start_ns"]
    step = last_begun(begins, bounds[:-1])
    return Stretches(bounds, _BEFORE * before + _AFTER * after, part, step, own)


def only(stretches: Stretches, chosen: Mask) -> Stretches:
    """The stretches with those of chosen steps in parts, numbered among these."""
    number = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)[stretches.step]
    part = np.where(number >= 0, stretches.part, -1)
    return stretches._replace(part=part, step=number)


def _positions(names: Sequence[str], costs: Sequence[str]) -> Rows:
    """The position in `costs` of each name, and last of none of them."""
    whole = costs.index(WHOLE) if WHOLE in costs else -1
    found = [costs.index(name) if name in costs else whole for name in names]
    return np.array([*found, whole], np.intp)


def loop_events(trace: Trace) -> Mask:
    """Events of the thread of the training loop, and of other threads that do a step's work.

    In PyTorch these run backward, in JAX on a CPU all compiled operations.
    """
    events = trace.events
    if in_jax(trace) and not device_work(trace).any():
        return on_host(trace) & (events["step"] >= 0)
    backward = on_host(trace) & events.text("stage").mask("backward")
    inside = events["step"] >= 0
    return inside & ((events["track"] == main_track(trace)) | backward)


def _stages_at(trace: Trace, times: Times) -> Rows:
    runs = trace["stages"].take(np.argsort(trace["stages"]["start_ns"], kind="stable"))
    runs = runs.take(runs["end_ns"] > runs["start_ns"])
    run = running_span(runs["start_ns"], runs["end_ns"], times)
    return np.append(runs["stage"], -1)[run].astype(np.intp)


def with_hidden_cost(
    stretches: Stretches, costs: Mapping[str, float], blocked: Intervals, steps: int, least_ns: float = 0.0
) -> dict[str, float]:
    """Costs in which a wait for the device does not hide what the events of its part cost.

    The step then is no longer, but its CPU work is. Events in a part that waits cost what those in
    other parts cost, as far as the wait was long enough to hide it. Costs are ns per step and part.
    """
    inside = stretches.part >= 0
    waits = blocked.within(stretches.bounds[:-1], stretches.bounds[1:])
    events, waited = (_sums(stretches.part, inside, x, len(costs)) for x in (stretches.events, waits))
    cost = np.array(list(costs.values()), np.float64)
    known = (waited == 0) & (events > 0)
    rate = max(cost[known].sum() / max(events[known].sum(), 1e-9), least_ns)
    hidden = np.minimum(np.maximum(events * rate - cost, 0.0), waited / steps)
    return dict(zip(costs, (cost + hidden).tolist(), strict=True))


def removed_time(
    stretches: Stretches,
    costs: Mapping[str, float],
    spreads: Mapping[str, float],
    steps: int,
    most_ns: float = MOST_NS,
    memory: Sequence[float] = (),
    used: Mapping[str, Floats] | None = None,
) -> Floats:
    """How much of each stretch of time recording took, ns, shape (n,).

    Within a part all events cost the same, but a stretch has no more to give than its length. What
    the gaps of a step cannot give, since recording also slows operators, is taken from all its time
    alike, as are new pages of memory, which operators get. Costs are medians, thus of a step with
    the median number of events: one that begins with a rollout has more events and costs more. If
    a part has far more than usual, these are of another kind, and cost what those of all parts do.

    Args:
        costs: per step and part, ns, as `part_costs` gives them.
        spreads: of unrecorded steps, ns, as `unrecorded_spreads` gives them.
        most_ns: of one event, as `most_of_event` gives it.
        memory: what of each cost is of new pages, as `costs_of_memory` gives it.
        used: CPU time of each step by part, ns, shape (steps,), where that is known.
    """
    room = (1 - _KEPT) * np.diff(stretches.bounds).astype(np.float64)
    removed = np.zeros(len(room))
    typical = typical_events(stretches, len(costs), steps)
    memory = memory or [0.0] * len(costs)
    by_events = [cost - pages for cost, pages in zip(costs.values(), memory, strict=True)]
    *each, of_others = _cost_of_event(by_events, typical, most_ns)
    for part, (name, cost) in enumerate(costs.items()):
        chosen = (stretches.part == part) & (stretches.step >= 0)
        events = _sums(stretches.step, chosen, stretches.events, steps)
        alike = _alike(events, typical[part])
        usual = np.where(alike, events, np.minimum(events, typical[part]))
        spread, times = spreads.get(name, 0.0), (used or {}).get(name)
        more = of_others if times is None else _cost_of_more(times, events, spread, of_others, most_ns)
        total = each[part] * usual + more * (events - usual)
        pages = memory[part] * usual / max(typical[part], 1.0)
        if cost and typical[part] and name in spreads and alike.any():
            spent = _sums(stretches.step, chosen, np.diff(stretches.bounds), steps)
            total += _varying_cost(spent, events / typical[part], spread)
        for step in np.flatnonzero(total + pages > 0).tolist():
            here = np.flatnonzero(chosen & (stretches.step == step))
            amounts = float(total[step]), float(pages[step])
            removed[here] = _shared(stretches.events[here], room[here], *amounts)
    return removed


def with_own_work(stretches: Stretches, removed: Floats) -> Floats:
    """What recording took of each stretch: all where the recorder itself ran, ns, shape (n,)."""
    return np.where(stretches.own_work, (1 - _OWN_KEPT) * np.diff(stretches.bounds), removed)


def costs_of_memory(costs: Sequence[float], typical: Sequence[float], faults_ns: float) -> list[float]:
    """What new pages of memory cost in each part, ns per step.

    A profiler keeps small pieces of memory between the large ones of tensors. Where the allocator
    then cannot use these again, as seen in glibc 2.36, tensors get new pages in every recorded
    step. A page costs more than its fault, since no cache has it. The parts that get them are those
    that cost more than their events do. An event costs the same in all parts: what it does in the
    cheapest of those with many events, as far as the faults and `MOST_NS` allow.

    Args:
        costs: of recording, by part, ns per step.
        typical: events of each part in a step, as `typical_events` gives them.
        faults_ns: what the faults cost, ns per step.

    Example:
        >>> costs_of_memory([100.0, 900.0], [50.0, 50.0], faults_ns=800.0)
        [0.0, 800.0]
    """
    events = max(sum(typical), 1.0)
    least, most = (max(sum(costs) - times * faults_ns, 0.0) for times in (_FAULTS_OF_PAGE, 1))
    pairs = [pair for pair in zip(costs, typical, strict=True) if pair[1] >= _MANY * events]
    cheapest = min((cost / count for cost, count in pairs), default=0.0)
    rate = min(max(cheapest, least / events), most / events, MOST_NS)
    more = [max(cost - rate * n, 0.0) if n else 0.0 for cost, n in zip(costs, typical, strict=True)]
    share = min(_FAULTS_OF_PAGE * faults_ns / max(sum(more), 1e-9), 1.0)
    return [share * cost for cost in more]


def events_of_steps(stretches: Stretches, steps: int) -> Floats:
    """The recorded events of each step, float64, shape (steps,)."""
    return _sums(stretches.step, (stretches.part >= 0) & (stretches.step >= 0), stretches.events, steps)


def typical_events(stretches: Stretches, parts: int, steps: int) -> list[float]:
    """The median over the steps of the recorded events in each part.

    0 where many steps have another number: medians with and without recording may be of different work.
    """
    chosen = [(stretches.part == part) & (stretches.step >= 0) for part in range(parts)]
    counts = np.array([_sums(stretches.step, rows, stretches.events, steps) for rows in chosen])
    typical = np.median(counts, axis=1)
    varies = np.mean(~_alike(counts, typical[:, None]), axis=1) > _MANY_STEPS
    return [float(n) for n in np.where(varies & (typical[~varies] > 0).any(), 0.0, typical)]


def _alike(events: Floats, typical: Floats | float) -> Mask:
    """Whether steps with so many events do the same work as typical ones."""
    return np.abs(events - typical) <= _ALIKE * typical


def _cost_of_event(costs: Sequence[float], typical: Sequence[float], most_ns: float) -> list[float]:
    """What a usual event of each part costs, ns, and last any other event: no more than recording can cost.

    A part with few events may cost more for each, since it is also timed; a step and others may not.
    """
    events = sum(typical)
    most = [most_ns * (count + _BY_TIMING) if count else 0.0 for count in typical]
    allowed = [min(pair) for pair in zip(costs, most, strict=True)]
    share = min(most_ns * events / max(sum(allowed), 1e-9), 1.0)
    usual = [share * cost / max(count, 1.0) for cost, count in zip(allowed, typical, strict=True)]
    others = min(each for each, count in zip(usual, typical, strict=True) if count >= _MANY * events)
    return [*usual, others]


def _cost_of_more(spent: Floats, events: Floats, spread: float, of_others: float, most_ns: float) -> float:
    """What an event of a part costs that only some steps have, ns.

    Where enough of the unrecorded steps have it, they vary by its time; else it costs what others do.
    """
    rare = ~_alike(events, float(events.min()))
    if not rare.any():
        return of_others
    more_ns, more = (float(np.median(x[rare]) - np.median(x[~rare])) for x in (spent, events))
    each = max(min((more_ns - spread) / more, most_ns), min(of_others, _LEAST_NS))
    return each if spread >= more_ns / _MOST_TIMES else of_others


def _varying_cost(spent: Floats, share: Floats, spread: float) -> Floats:
    """By how much recording a part cost more than usual in each step, ns, shape (steps,).

    Recording also varies: memory for its events is now and then allocated. Steps that vary more
    than unrecorded ones, with `spread` from the 10th to the 90th percentile, are brought closer to the
    median, until they vary as much as those. What is far off is something else, and stays. `share` has
    the events in the part, of those in a typical step.
    """
    alike = _alike(share, 1.0)
    excess = (spent - float(np.median(spent[alike])) * share) * alike
    low, high = np.percentile(excess[alike], [10, 90])
    width = float(high - low)
    kept = min(spread / width, 1.0) if width else 1.0
    return (1 - kept) * np.clip(excess, -width, width)


def _sums(group: Rows, chosen: Mask, values: Floats | Times, count: int) -> Floats:
    """The sum of a value of chosen stretches by step or by part, float64, shape (count,)."""
    return np.bincount(group[chosen], values[chosen], count).astype(np.float64)


def _shared(events: Floats, room: Floats, total: float, alike: float = 0.0) -> Floats:
    """The same time for each event, at most the room of its stretch, that adds up to `total`.

    What does not fit, and `alike`, is taken from what is left of all stretches.
    """
    low, high = 0.0, float((room / np.maximum(events, _AFTER)).max(initial=0))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        enough = np.minimum(middle * events, room).sum() > total
        low, high = (low, middle) if enough else (middle, high)
    given = np.minimum(high * events, room)
    left = room - given
    missing = max(min(total + alike - float(given.sum()), float(left.sum())), 0.0)
    return given + left * (missing / max(float(left.sum()), 1.0))
