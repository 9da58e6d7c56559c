"""When a training loop runs Python and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def python_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When no thread of a rank computes, loads data or communicates, within some of its steps.

    Backward runs no Python: where nothing works in it, whoever does was not recorded.

    Args:
        trace: an annotated trace.
        rank: which rank.
        steps: rows of its table of steps.
    """
    events = trace.events
    mine = (trace["tracks"]["rank"][events["track"]] == rank) & np.isin(
        events["step"], steps["step"]
    )
    works = events.text("category").mask("cpu_op", "runtime") & ~_is_ours(events)
    works |= events.text("category").mask("communication")
    works |= events.text("stage").mask("data_loading")
    rows = np.flatnonzero(mine & works)
    start = events["start_ns"][rows]
    busy = Intervals(start, start + events["duration_ns"][rows])
    spans = Intervals(steps["start_ns"], steps["end_ns"])
    return spans.minus(busy.union(_backward(trace["stages"], rank)))


def _is_ours(events: Table) -> NDArray[np.bool_]:
    """The ranges of a capture, which mark Python and compute nothing."""
    return events.text("name").where(lambda name: name.startswith("stepscope."))


def _backward(runs: Table, rank: int) -> Intervals:
    mine = runs.text("stage").mask("backward") & (runs["rank"] == rank)
    return Intervals(runs["start_ns"][mine], runs["end_ns"][mine])
