"""Delays by a busy machine: a thread that lost its core in one step, and not in the others."""

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask, Rows, Times
from stepscope.facts.annotate.device.one_off_costs import COMPILING
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.range_names import codes_of_names
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.step_table import steady_steps, step_lengths
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import is_inside
from stepscope.trace.recorded_steps import usual_step_ns
from stepscope.trace.row_order import place_in_group
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace, on_clock

MIN_STEPS = 3  # with fewer nothing shows what a segment usually takes
LEAST_NS = 50_000  # a preempted thread waits for longer
UNUSUAL = 2.0  # of what the segment usually takes
_SCALES_NS = 20_000  # shorter operators do not grow with their tensors


def without_delays(trace: Trace) -> Trace:
    """The trace with the delays of its training loop cut out of its clock.

    The loop's time is cut at the start and end of each event. A piece that takes far more than the
    same piece in the other steps, relative to the rest of its step, is a delay. Loading of data and
    compilation vary by themselves, and traces of several ranks or of a device are left alone: what
    looks like a delay may be a wait. A step is left as long as those after the recording usually are.
    """
    steps = trace["steps"].take(steady_steps(trace["steps"]))
    if len(steps) < MIN_STEPS or len(trace.metadata.ranks) > 1 or trace.metadata.world_size > 1:
        return trace
    if device_work(trace).any():
        return trace
    most = step_lengths(steps).sum() - len(steps) * usual_step_ns(trace.metadata.capture)
    found = _longest(find_delays(trace, steps), most)
    return _cut(trace, found) if len(found) else trace


def _longest(spans: Intervals, most_ns: float) -> Intervals:
    """The longest of some intervals, and the end of the next, of so much time in all."""
    order = np.argsort(spans.starts - spans.ends, kind="stable")
    length, ends = (spans.ends - spans.starts)[order], spans.ends[order]
    kept = np.clip(most_ns - np.cumsum(length) + length, 0, length)
    return Intervals(ends - kept.astype(np.int64), ends)


def find_delays(trace: Trace, steps: Table) -> Intervals:
    """When the training loop is delayed in some steps, at least three."""
    end, length_ns, varies, is_first = _aligned_pieces(trace, steps)
    length = length_ns.reshape(-1, len(steps)).astype(np.float64)
    length = np.where(is_first.reshape(length.shape), length.max(axis=1, keepdims=True), length)
    # A program that takes turns with another may lose its core at the same place of most steps.
    usual = np.sort(length, axis=1)[:, len(steps) // 8, None]
    expected = usual * _scale_of_steps(length, usual)
    excess = np.where(length > UNUSUAL * expected + LEAST_NS, length - expected, 0).reshape(-1)
    excess = np.where(varies | is_first, 0, excess).astype(np.int64)
    return Intervals(end - excess, end)


def _aligned_pieces(trace: Trace, steps: Table) -> tuple[Times, Times, Mask, Mask]:
    """Pieces of the loop's time between two starts or ends of events that every step has as often.

    By place and then step: their ends, lengths, whether each varies by itself, and whether it is before
    the first event of all, where it has no known length.
    """
    events = trace.events
    on_loop = np.flatnonzero(events["track"] == main_track(trace))
    time = np.concatenate(events.spans(on_loop))
    row = np.concatenate([on_loop, on_loop])
    side = np.repeat([0, 1], len(on_loop))
    order = np.lexsort((1 - side, time))  # one step ends where the next begins
    time, row, side = time[order], row[order], side[order]
    length = np.diff(time, prepend=time[:1])
    step = np.searchsorted(steps["step"], events["step"][row])
    kept = np.flatnonzero(np.isin(events["step"][row], steps["step"]))
    kind = codes_of_names(trace.events.text("name"))[row[kept]] * 2 + side[kept]
    kept = kept[_in_order_of_place(kind, step[kept], len(steps))]
    inner = np.where(side == 1, row, events["parent"][row])[kept]
    varies = np.append(_varying(trace), False)[inner]
    return time[kept], length[kept], varies, kept == 0


def _in_order_of_place(kind: Ids, step: Ids, steps: int) -> Rows:
    """The order by kind, number within the step, and step; without kinds that steps differ in."""
    codes, kind = np.unique(kind, return_inverse=True)
    cell = kind * steps + step
    count = np.bincount(cell, minlength=len(codes) * steps).reshape(-1, steps)
    even = np.flatnonzero((count == count[:, :1]).all(axis=1)[kind])
    return even[np.lexsort((step[even], place_in_group(cell)[even], kind[even]))]


def _scale_of_steps(length: Floats, usual: Floats) -> Floats:
    """How much longer than usual two thirds of each step's time are, at least: shape (steps,)."""
    large = usual[:, 0] >= _SCALES_NS
    if not large.any():
        return np.ones(length.shape[1])
    ratio = length[large] / usual[large]
    order = np.argsort(ratio, axis=0)
    weight = np.cumsum(usual[large, 0][order], axis=0)
    chosen = np.take_along_axis(order, (weight < weight[-1] / 3).sum(axis=0)[None], 0)
    return np.maximum(np.take_along_axis(ratio, chosen, 0)[0], 1)


def _varying(trace: Trace) -> Mask:
    """Events whose time varies by itself: loading, communication, calls of a driver, compiling."""
    events = trace.events
    varying = events.text("stage").mask("data_loading")
    varying |= events.text("category").mask("communication", "sync", "runtime")
    varying |= events.text("name").where(lambda name: bool(COMPILING.search(name)))
    return is_inside(events["parent"], varying)


def _cut(trace: Trace, delays: Intervals) -> Trace:
    knots = np.stack([delays.starts, delays.ends], axis=1).reshape(-1).astype(np.float64)
    lost = np.cumsum(delays.ends - delays.starts)
    shift = np.stack([np.append(0, lost[:-1]), lost], axis=1).reshape(-1)

    def moved(time: Times) -> Times:
        return time - np.rint(np.interp(time, knots, shift, left=0)).astype(np.int64)

    start, end = map(moved, trace.events.spans())
    return on_clock(trace, start, end, moved)
