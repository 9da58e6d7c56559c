"""When a training loop computes nothing: it runs Python, or waits for other ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]


def python_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When no thread of a rank computes, loads data or communicates, within some of its steps.

    Backward runs no Python: where nothing works in it, whoever does was not recorded.

    Args:
        trace: an annotated trace.
        rank: which rank.
        steps: rows of its table of steps.
    """
    events = trace.events
    works = _computes(events) | events.text("category").mask("communication")
    works |= events.text("stage").mask("data_loading")
    busy = _spans(trace, rank, steps, works).union(_backward(trace["stages"], rank))
    return Intervals(steps["start_ns"], steps["end_ns"]).minus(busy)


def exposed_communication(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When a rank communicates and none of its threads computes, within some of its steps.

    Args:
        trace: an annotated trace.
        rank: which rank.
        steps: rows of its table of steps.
    """
    events = trace.events
    speaks = _spans(trace, rank, steps, events.text("category").mask("communication"))
    within = Intervals(steps["start_ns"], steps["end_ns"])
    return speaks.intersect(within).minus(_spans(trace, rank, steps, _computes(events)))


def _computes(events: Table) -> Mask:
    """Operators and calls of a runtime; a capture's own ranges mark Python and compute nothing."""
    ours = events.text("name").where(lambda name: name.startswith("stepscope."))
    return events.text("category").mask("cpu_op", "runtime") & ~ours


def _spans(trace: Trace, rank: int, steps: Table, chosen: Mask) -> Intervals:
    events = trace.events
    mine = trace["tracks"]["rank"][events["track"]] == rank
    rows = np.flatnonzero(mine & np.isin(events["step"], steps["step"]) & chosen)
    start = events["start_ns"][rows]
    return Intervals(start, start + events["duration_ns"][rows])


def _backward(runs: Table, rank: int) -> Intervals:
    mine = runs.text("stage").mask("backward") & (runs["rank"] == rank)
    return Intervals(runs["start_ns"][mine], runs["end_ns"][mine])
