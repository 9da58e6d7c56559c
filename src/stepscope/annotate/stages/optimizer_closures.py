"""Optimizer steps that run a closure: `optimizer.step(closure)`, as LBFGS and Lightning do."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.names.autograd_marks import is_forward
from stepscope.annotate.names.range_names import CODE
from stepscope.annotate.steps.steps import main_track
from stepscope.arrays import Codes8, Mask, Rows, Times
from stepscope.trace.trace import Trace

_NONE = -1
_OPTIMIZER, _BACKWARD = CODE["optimizer"], CODE["backward"]


def release_closures(trace: Trace, own: Codes8, stage: Codes8) -> tuple[Codes8, Mask]:
    """Take what an optimizer's closure runs out of the optimizer stage.

    An optimizer range in which backward work begins runs a closure, until the last of that work
    ends. Events in it that no name identifies are left to be assigned by position, as if the
    closure were called by the training loop. The ranges around it have no stage: on the thread of
    the loop they only pass the calls on, or wait for autograd's thread.

    Args:
        trace: the trace.
        own: the stage of each event by its own name, -1 if unknown, shape (n,).
        stage: the same, passed on to events inside, shape (n,).

    Returns:
        The new stages, and the ranges without a stage, bool, each shape (n,).
    """
    events = trace.events
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    host = on_host(trace)
    loop = host & (events["track"] == main_track(trace))
    inside = loop & (stage == _OPTIMIZER)
    if not (inside & (own == _OPTIMIZER)).any():
        return stage, np.zeros(len(stage), np.bool_)
    backward = np.flatnonzero(host & (stage == _BACKWARD))
    outer = inside & (own == _OPTIMIZER) & (stage[events["parent"]] != _OPTIMIZER)
    outer |= inside & (own == _OPTIMIZER) & (events["parent"] < 0)
    result, wrappers = stage.copy(), np.zeros(len(stage), np.bool_)
    rows = np.flatnonzero(outer)
    rows = rows[_begun_within(start[backward], start[rows], end[rows]) > 0]
    if not len(rows):
        return result, wrappers
    candidates = np.flatnonzero(inside)
    forward = start[loop & (is_forward(events) | (stage == CODE["forward"]))]
    for row in rows:
        first, last = np.searchsorted(start[backward], [start[row], end[row]])
        until = end[backward[first:last]].max()
        part = np.searchsorted(start[candidates], [start[row], min(until, end[row])])
        within = candidates[part[0] : part[1]]
        around = _around(start, end, within, start[backward[first:last]])
        wrappers[around] = True
        between = _between_calls(start[within], end[within], end[backward[first:last]], forward)
        released = ~between & (own[within] != _OPTIMIZER) | np.isin(within, around)
        result[within[released]] = _NONE
    return result, wrappers


def _begun_within(moments: Times, start: Times, end: Times) -> Times:
    """How many of the sorted `moments` lie in each span."""
    return np.searchsorted(moments, end) - np.searchsorted(moments, start)


def _between_calls(start: Times, end: Times, backward_ends: Times, forward: Times) -> Mask:
    """What follows a backward pass with no forward work since: LBFGS between two evaluations."""
    ends = np.sort(backward_ends)
    before = np.searchsorted(ends, start, side="right")
    since = ends[np.maximum(before - 1, 0)]
    result: Mask = (before > 0) & (_begun_within(forward, since, end) == 0)
    return result


def _around(start: Times, end: Times, rows: Rows, moments: Times) -> Rows:
    """The rows in which backward work begins."""
    return rows[_begun_within(moments, start[rows], end[rows]) > 0]
