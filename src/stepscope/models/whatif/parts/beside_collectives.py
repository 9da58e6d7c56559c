"""How much longer kernels take beside a collective, as the recording itself shows it.

Source: DAYDREAM section 6.5: collectives and kernels compete for memory bandwidth and multiprocessors.
"""

from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.facts.contexts.build_tree import launch_metrics
from stepscope.graph import Graph, select
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import rows_by_key

_BESIDE = 0.9  # of a kernel's time, to count as run beside a collective; chosen: the rest hardly matters
_LEAST_NS = 20_000  # of a kernel; older traces have a resolution of 1 µs, so that shorter ones show nothing
_LEAST_SHAPES = 5  # that ran both ways; chosen: fewer have no spread to speak of
_QUARTILES = (25, 50, 75)  # percentiles; a slow-down is one where three quarters of the shapes show it


class CollectiveSlowdown(NamedTuple):
    """Times beside a collective over times without one, of kernels of one name and launch size."""

    low: float  # quartiles over the shapes
    median: float
    high: float
    shapes: int
    share: float  # of the kernels' time that is beside a collective

    @property
    def error(self) -> float:
        """How far a prediction may be off that moves collectives away, as a share of kernel time."""
        return self.share * max(self.median - 1, 0.0) if self.low > 1 else 0.0

    def __str__(self) -> str:
        return (
            f"kernels keep their speed, although beside collectives they take {self.median:.2f} times as "
            f"long as elsewhere in this recording (median of {self.shapes} shapes; half of them "
            f"{self.low:.2f} to {self.high:.2f}), for {self.share:.0%} of their time"
        )


def beside_collectives(graph: Graph) -> CollectiveSlowdown | None:
    """The slow-down of kernels by collectives; None where the recording cannot show it.

    Kernels are of one shape if their name, blocks and threads are equal.
    """
    ranks = graph.threads["rank"][graph.tasks["thread"]]
    kernels = select(graph, category="kernel", on_device=True) & (graph.tasks["event"] >= 0)
    sends = select(graph, category="communication", on_device=True) & (graph.tasks["event"] >= 0)
    start, end = (np.append(times, 0)[graph.tasks["event"]] for times in graph.trace.events.spans())
    inside = np.zeros(len(start), np.float64)
    for rank in np.unique(ranks[sends]).tolist():
        mine = kernels & (ranks == rank)
        busy = Intervals(start[sends & (ranks == rank)], end[sends & (ranks == rank)])
        inside[mine] = busy.within(start[mine], end[mine])
    tasks = np.flatnonzero(kernels & (end > start))
    if not inside.any():
        return None
    time = (end - start)[tasks].astype(np.float64)
    ratios = _ratios(_shapes(graph, graph.tasks["event"][tasks]), time, inside[tasks] / time)
    if len(ratios) < _LEAST_SHAPES:
        return None
    low, median, high = np.percentile(ratios, _QUARTILES).tolist()
    return CollectiveSlowdown(low, median, high, len(ratios), float(inside.sum() / time.sum()))


def _shapes(graph: Graph, events: Ids) -> Ids:
    """The number of each kernel's shape, -1 where its launch is not recorded."""
    sizes = np.full((2, len(graph.trace.events)), -1.0)
    for name, known, values in launch_metrics(graph.trace, events.astype(np.int64)):
        if name in ("blocks", "threads"):
            sizes[int(name == "threads"), known] = values
    keys = np.stack([graph.trace.events.text("name").codes[events].astype(np.float64), *sizes[:, events]])
    number = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    return np.where(sizes[0, events] < 0, -1, number).astype(np.int64)


def _ratios(shape: Ids, time: Floats, share: Floats) -> Floats:
    """The ratio of the median times of each shape that ran both ways, and long enough."""
    ways = [_medians(shape[chosen], time[chosen]) for chosen in (share >= _BESIDE, share == 0)]
    both = [number for number in ways[1] if number in ways[0] and ways[1][number] >= _LEAST_NS]
    return np.array([ways[0][number] / ways[1][number] for number in both])


def _medians(shape: Ids, time: Floats) -> dict[int, float]:
    """The median time of each shape, ns."""
    known = np.flatnonzero(shape >= 0)
    return {one: float(np.median(time[rows])) for one, rows in rows_by_key(shape, known).items()}
