"""Statistics over instances: events of one name, calls of a module, runs of a stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.arrays import Rows, Times
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class InstanceStatistics:
    """Statistics of some durations, ns."""

    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    std_ns: int
    least_ns: int
    most_ns: int


def statistics(durations: Times) -> InstanceStatistics:
    """Statistics of at least one duration, int64, shape (instances,), ns.

    Example:
        >>> statistics(np.array([1, 2, 6])).median_ns
        2
    """
    return InstanceStatistics(
        count=len(durations),
        total_ns=int(durations.sum()),
        mean_ns=round(durations.mean()),
        median_ns=round(float(np.median(durations))),
        std_ns=round(durations.std()),
        least_ns=int(durations.min()),
        most_ns=int(durations.max()),
    )


def same_name_events(trace: Trace, event: int) -> Rows:
    """Events with the same name and rank, on the same side (host or device), ascending."""
    events, tracks = trace.events, trace["tracks"]
    same = np.flatnonzero(events["name"] == events["name"][event])
    track, own = events["track"][same], int(events["track"][event])
    rank, on_device = tracks["rank"], tracks["device"] >= 0
    kept: Rows = same[(rank[track] == rank[own]) & (on_device[track] == on_device[own])]
    return kept


def calls_of(trace: Trace, module: int) -> Rows:
    """Recorded calls of a module, ascending; empty if only its operators are known."""
    own = np.flatnonzero(trace.events["module"] == module)
    marked = (
        trace.events.text("name")
        .take(own)
        .where(lambda name: name.startswith((MODULE_RANGE, MODULE_FRAME)))
    )
    return own[marked]


def runs_of(trace: Trace, stage: str, rank: int) -> Rows:
    """Rows of the table `stages`: the runs of one stage on one rank."""
    stages = trace["stages"]
    return np.flatnonzero(stages.text("stage").mask(stage) & (stages["rank"] == rank))
