"""Host time without computing: only Python runs, or the rank waits for other ranks."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.communication_names import is_communication_wait
from stepscope.arrays import Mask
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def python_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When no thread of a rank computes, loads data or communicates, within the given steps.

    Backward is excluded: autograd runs no Python, so idle time there is unrecorded work.

    Args:
        trace: an annotated trace.
        rank: the rank.
        steps: rows of the table `steps`.
    """
    events = trace.events
    works = _computes(events) | events.text("category").mask("communication")
    works |= events.text("stage").mask("data_loading")
    busy = _spans(trace, rank, steps, works).union(_backward(trace["stages"], rank))
    return Intervals(steps["start_ns"], steps["end_ns"]).minus(busy)


def exposed_communication(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When a rank communicates and none of its threads computes or loads data, within the steps.

    Operators that wait for a collective, and those that call them, do not compute meanwhile.

    Args:
        trace: an annotated trace.
        rank: the rank.
        steps: rows of the table `steps`.
    """
    events = trace.events
    communicates = _spans(trace, rank, steps, events.text("category").mask("communication"))
    within = Intervals(steps["start_ns"], steps["end_ns"])
    return communicates.intersect(within).minus(busy_time(trace, rank, steps))


def busy_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When any thread of a rank computes or loads data; waiting for a collective is neither.

    Args:
        trace: an annotated trace.
        rank: the rank.
        steps: rows of the table `steps`.
    """
    loads = trace.events.text("stage").mask("data_loading")
    return _computing(trace, rank, steps).union(_spans(trace, rank, steps, loads))


def _computing(trace: Trace, rank: int, steps: Table) -> Intervals:
    events = trace.events
    waits = events.text("name").where(is_communication_wait)
    computes = _computes(events) & ~waits
    on_waiting_thread = np.isin(events["track"], np.unique(events["track"][waits]))
    waiting = _spans(trace, rank, steps, waits)
    here = _spans(trace, rank, steps, computes & on_waiting_thread).minus(waiting)
    return here.union(_spans(trace, rank, steps, computes & ~on_waiting_thread))


def _computes(events: Table) -> Mask:
    """Operators and runtime calls; ranges written by a capture only mark Python code."""
    markers = events.text("name").where(lambda name: name.startswith("stepscope."))
    return events.text("category").mask("cpu_op", "runtime") & ~markers


def _spans(trace: Trace, rank: int, steps: Table, chosen: Mask) -> Intervals:
    events = trace.events
    of_rank = trace["tracks"]["rank"][events["track"]] == rank
    rows = np.flatnonzero(of_rank & np.isin(events["step"], steps["step"]) & chosen)
    start = events["start_ns"][rows]
    return Intervals(start, start + events["duration_ns"][rows])


def _backward(runs: Table, rank: int) -> Intervals:
    backward = runs.text("stage").mask("backward") & (runs["rank"] == rank)
    return Intervals(runs["start_ns"][backward], runs["end_ns"][backward])
