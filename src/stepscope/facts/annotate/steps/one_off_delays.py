"""Operators that took long once: delays by a busy machine, as far as a trace shows them."""

import numpy as np

from stepscope.base.arrays import Rows
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

LEAST_NS = 1_000_000  # a process that loses its core gets it back after some milliseconds
_MIN_STEPS = 3  # of two steps nothing shows which one is usual
_RARE = 0.1  # of what it takes in the step where it takes longest
_LOADING = STAGES.index("data_loading")


def one_off_delays(trace: Trace, rank: int) -> Rows:
    """CPU operators that took 1 ms or more, and next to nothing at the same place in other steps.

    The place of an operator is its number among the operators of its name in the step. Loading of
    data, whose time varies, does not count. What takes long in two steps or more at the same place
    is no delay.

    Returns:
        events.id, shape (n,); none for fewer than three steps.
    """
    events = trace.events
    steps = trace["steps"]["step"][trace["steps"]["rank"] == rank]
    here = (trace["tracks"]["rank"] == rank)[events["track"]] & np.isin(events["step"], steps)
    here &= events.text("category").mask("cpu_op") & (events["stage"] != _LOADING)
    rows = np.flatnonzero(here)
    if len(steps) < _MIN_STEPS or not (events["self_ns"][rows] >= LEAST_NS).any():
        return np.zeros(0, np.intp)
    place = _places(events["step"][rows], events["name"][rows])
    order = np.lexsort((events["self_ns"][rows], place, events["name"][rows]))
    rows = rows[order]
    last = np.append(begins_run(_keys(events["name"][rows], place[order]))[1:], True)
    # The longest at its place is last; the one before it is of another step, or there is none.
    own = events["self_ns"][rows]
    second = np.where(np.append(False, last[:-1]), 0, np.append(0, own[:-1]))
    found: Rows = rows[last & (own >= LEAST_NS) & (second <= _RARE * own)]
    return np.sort(found)


def _places(step: Rows, name: Rows) -> Rows:
    """The number of each event among those of its step and name; events are in order of start."""
    order = np.lexsort((np.arange(len(step)), name, step))
    first = np.flatnonzero(begins_run(_keys(step[order], name[order])))
    within = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    place = np.empty(len(order), np.intp)
    place[order] = within
    return place


def _keys(major: Rows, minor: Rows) -> Rows:
    """One number for each pair."""
    return major.astype(np.int64) * (int(minor.max(initial=0)) + 1) + minor
