"""Correct the times of a capture by the cost of its recording.

Recording takes time on the CPU: what it took is known per part of a step, because the same process
also timed unrecorded steps (`costs`). It is taken from the gaps in which the recorder works
(`gaps`), and the clocks of the CPU and of devices follow.

If a device is busy meanwhile, it goes on: the CPU is then further ahead of it. This lead ends where
the device is idle, because it waited for a launch that now comes earlier, or where the CPU waits
for the device, which now takes longer. So device work keeps its length, starts after its launch,
and a step that a device limits keeps its length too.

Source: the lead follows the recursion of a queue, D. V. Lindley, "The theory of queues with a
single server", 1952.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Mask, Rows, Times
from stepscope.facts.annotate import find_stages
from stepscope.facts.annotate.device.idle import full_queue_launches, time_blocked
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.stages.stage_runs import with_parts_moved
from stepscope.facts.annotate.steps.windows import unrecorded_work_end
from stepscope.facts.correct.costs import (
    WHOLE,
    StepGroup,
    error_of_median,
    estimated_cost,
    mean_step_ns,
    missing_kind,
    most_of_event,
    other_work,
    page_faults,
    page_faults_ns,
    part_costs,
    step_groups,
    unrecorded_spreads,
    why_unknown,
)
from stepscope.facts.correct.gaps import (
    costs_of_memory,
    events_of_steps,
    only,
    removed_time,
    stretches_of,
    typical_events,
    with_hidden_cost,
    with_own_work,
)
from stepscope.trace.concat import in_order_of_start
from stepscope.trace.intervals import Intervals
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace, on_clock

_IDLE_KEPT = 0.05  # of idle time, so that the order of events holds
_USUAL_NS = 1_000.0  # of an event; 0.5 and 1.5 µs in captures of an H200 that the CPU limits


def without_recording_cost(recorded: Trace) -> Trace:
    """The recorded trace with the times that its run would have had without recording.

    Order and nesting of events hold, device work keeps its length, and links stay valid.
    `Metadata.recording_cost` says what was done, or why nothing was.
    """
    if not len(recorded.events):
        return recorded
    if why := why_unknown(recorded.metadata):
        return recorded.with_metadata(recording_cost={"unknown": why})
    annotated = find_stages(recorded)
    if not len(annotated["steps"]):
        return recorded
    if why := other_work(annotated):
        return recorded.with_metadata(recording_cost={"unknown": why})
    return _corrected(recorded, annotated)


def _corrected(recorded: Trace, annotated: Trace) -> Trace:
    capture = recorded.metadata.capture
    work = np.flatnonzero(device_work(annotated))
    blocked = time_blocked(annotated, work)
    # Where the CPU waits for room in the queue, with and without recording, no part shows the cost.
    least_ns = _USUAL_NS if len(full_queue_launches(annotated, work)) else 0.0
    costs = _costs_of_steps(annotated, blocked, least_ns)
    clocks = corrected_clocks(costs.bounds, costs.removed, _busy(annotated, work), blocked)
    steps = len(annotated["steps"])
    facts: dict[str, Any] = {
        "recorded_ns": round(costs.recorded_ns),
        "unrecorded_ns": round(costs.unrecorded_ns),
        "unrecorded_error": round(costs.error, 4),
        "removed_ns": round(float(costs.removed.sum()) / steps),
        "memory_ns": round(costs.memory_ns),
        "events": round(costs.events / steps),
        **({"estimated_steps": costs.estimated} if costs.estimated else {}),
        **costs.missing,
        **page_faults(capture),
    }
    return _on_clocks(recorded, clocks).with_metadata(
        recording_cost=facts, capture=with_parts_moved(recorded.metadata, clocks.on_cpu)
    )


@dataclass
class _Costs:
    """What recording took in each stretch of time, ns, and times per step: means over its groups."""

    bounds: Times
    removed: Floats
    events: float = 0.0
    recorded_ns: float = 0.0
    unrecorded_ns: float = 0.0
    error: float = 0.0
    memory_ns: float = 0.0
    estimated: int = 0  # steps that no unrecorded ones are like
    missing: dict[str, Any] = field(default_factory=dict)  # as `missing_kind` gives it

    def add(self, trace: Trace, group: StepGroup, cost_ns: float, memory_ns: float) -> None:
        share = float(group.chosen.mean())
        recorded_ns, before = mean_step_ns(trace), self.unrecorded_ns
        self.recorded_ns += share * recorded_ns
        self.memory_ns += share * memory_ns
        if group.unrecorded is None:
            self.unrecorded_ns += share * max(recorded_ns - cost_ns, 0.0)
            self.estimated += int(group.chosen.sum())
            return
        unrecorded_ns = float(group.unrecorded["median_ns"])
        self.unrecorded_ns += share * unrecorded_ns
        error_ns = self.error * before + share * unrecorded_ns * error_of_median(group.unrecorded)
        self.error = error_ns / max(self.unrecorded_ns, 1.0)


def _costs_of_steps(annotated: Trace, blocked: Intervals, least_ns: float) -> _Costs:
    """Of each group of steps that do the same work; those that no unrecorded ones are like come last."""
    whole = stretches_of(annotated, [WHOLE])
    events = events_of_steps(whole, len(annotated["steps"]))
    groups = step_groups(annotated, events)
    result = _Costs(whole.bounds, np.zeros(len(whole.events)), float(whole.events[whole.part >= 0].sum()))
    result.missing = missing_kind(groups, annotated.metadata.capture["unrecorded_steps"])
    for group in sorted(groups, key=lambda group: group.unrecorded is None):
        trace, steps = group.of_group(annotated), int(group.chosen.sum())
        if group.unrecorded is None:
            measured = np.any([one.chosen for one in groups if one.unrecorded is not None], axis=0)
            rate = float(result.removed.sum()) / max(float(events[measured].sum()), 1.0)
            costs, spreads = estimated_cost(trace, events[group.chosen], rate), {}
            stretches = only(whole, group.chosen)
        else:
            costs, spreads = part_costs(trace), unrecorded_spreads(trace)
            stretches = only(stretches_of(annotated, list(costs)), group.chosen)
            costs = with_hidden_cost(stretches, costs, blocked, steps, least_ns)
        memory = costs_of_memory(
            list(costs.values()), typical_events(stretches, len(costs), steps), page_faults_ns(trace)
        )
        most, each = most_of_event(trace), (group.recorded.get("each") or {}).get("parts") or {}
        used = {name: np.array(times, np.float64)[group.chosen] for name, times in each.items()}
        result.removed += removed_time(stretches, costs, spreads, steps, most, memory, used)
        result.add(trace, group, sum(costs.values()), sum(memory))
    return replace(result, removed=with_own_work(whole, result.removed))


def _busy(trace: Trace, work: Rows) -> Intervals:
    """When a device works, with work from before the recording."""
    start, end = trace.events.spans(work)
    earlier_end = unrecorded_work_end(trace, trace.metadata.ranks[0])
    return Intervals(np.append(start, 0), np.append(end, earlier_end))


def _on_clocks(trace: Trace, clocks: "Clocks") -> Trace:
    """All times on the corrected clocks: of devices for their tracks, else of the CPU."""
    on_device = (trace["tracks"]["device"] >= 0)[trace.events["track"]]
    start, end = (
        np.where(on_device, clocks.on_device(times), clocks.on_cpu(times)) for times in trace.events.spans()
    )
    moved = on_clock(trace, start, end, clocks.on_cpu)
    return Trace(in_order_of_start(moved.tables), trace.metadata, trace.arguments)


class Clocks(NamedTuple):
    """Corrected times of the CPU and of devices at some recorded times."""

    recorded: Times  # int64, ns, ascending, shape (n,)
    cpu: Floats  # the same times on the corrected clock of the CPU, float64, ns, shape (n,)
    device: Floats  # on that of the devices; never before the CPU's

    def on_cpu(self, times: Times) -> Times:
        """Corrected times of events on the CPU, int64, ns, the shape of `times`."""
        return self._at(times, self.cpu)

    def on_device(self, times: Times) -> Times:
        """Corrected times of events on a device, int64, ns, the shape of `times`."""
        return self._at(times, self.device)

    def _at(self, times: Times, corrected: Floats) -> Times:
        shift = np.interp(times, self.recorded, corrected - self.recorded)
        return times + np.rint(shift).astype(np.int64)


def corrected_clocks(bounds: Times, removed: Floats, busy: Intervals, waits: Intervals) -> Clocks:
    """Clocks without the time that recording took.

    Args:
        bounds: recorded times, int64, ns, ascending, shape (n + 1,).
        removed: time to remove between them on the CPU, ns, shape (n,).
    """
    until = np.concatenate([[0.0], np.cumsum(removed)])
    if not len(busy):
        return Clocks(bounds, bounds - until, bounds - until)
    edges = [busy.starts, busy.ends, waits.starts, waits.ends]
    times = distinct(np.concatenate([bounds, *edges]))
    cost = np.diff(np.interp(times, bounds, until))
    idle = busy.within(times[:-1], times[1:]) == 0
    idle_ns = np.where(idle, (1 - _IDLE_KEPT) * np.diff(times), 0.0)
    lead, ended = _leads(cost, idle_ns, np.isin(times[1:], waits.ends))
    device = np.cumsum(np.minimum(ended, idle_ns))
    shifts = (np.concatenate([[0.0], shift]) for shift in (device + lead, device))
    return Clocks(times, *(times - shift for shift in shifts))


def _leads(cost: Floats, idle_ns: Floats, wait_ends: Mask) -> tuple[Floats, Floats]:
    """How far the CPU is ahead after each stretch of time, and how much of its lead ended in it."""
    most = float(cost.sum()) + 1.0
    change = cost - np.where(wait_ends, most, idle_ns)
    total = np.cumsum(change)
    lead = total - np.minimum(np.minimum.accumulate(total), 0.0)
    ended = np.concatenate([[0.0], lead[:-1]]) + cost - lead
    return lead, ended
