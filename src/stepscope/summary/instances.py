"""How the instances of one thing differ: events of a name, calls of a module, runs of a stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import MODULE_FRAME, MODULE_RANGE
from stepscope.trace.trace import Trace

Ids = NDArray[np.intp]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Statistics:
    """Statistics of some durations, ns."""

    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    std_ns: int
    least_ns: int
    most_ns: int


def statistics(durations: Times) -> Statistics:
    """Statistics of at least one duration, int64, shape (instances,), ns.

    Example:
        >>> statistics(np.array([1, 2, 6])).median_ns
        2
    """
    return Statistics(
        count=len(durations),
        total_ns=int(durations.sum()),
        mean_ns=round(durations.mean()),
        median_ns=round(float(np.median(durations))),
        std_ns=round(durations.std()),
        least_ns=int(durations.min()),
        most_ns=int(durations.max()),
    )


def alike(trace: Trace, event: int) -> Ids:
    """Events of an event's name on its rank and on its side of the launch, ascending."""
    events, tracks = trace.events, trace["tracks"]
    same = np.flatnonzero(events["name"] == events["name"][event])
    rank, device = tracks["rank"][events["track"]], tracks["device"][events["track"]] >= 0
    kept: Ids = same[(rank[same] == rank[event]) & (device[same] == device[event])]
    return kept


def calls_of(trace: Trace, module: int) -> Ids:
    """Recorded calls of a module, ascending; empty where only its operators are known."""
    marked = trace.events.text("name").where(
        lambda name: name.startswith((MODULE_RANGE, MODULE_FRAME))
    )
    return np.flatnonzero(marked & (trace.events["module"] == module))


def runs_of(trace: Trace, stage: str, rank: int) -> Ids:
    """Rows of the table `stages`: the runs of one stage on one rank."""
    stages = trace["stages"]
    return np.flatnonzero(stages.text("stage").mask(stage) & (stages["rank"] == rank))
