"""What the longest modules of a rank take, each with those inside it."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.trace.trace import Trace

_MOST_MODULES = 40
_PATH_LETTERS = 100
_QUANTILES = (0.1, 0.5, 0.9)


def module_times(
    trace: Trace, rows: Ids, duration: Floats, place: Ids, steps: int
) -> dict[str, tuple[float, float, float]]:
    """The longest modules by path: the time of a step in ms that 10, 50 and 90 % are below.

    Args:
        trace: an annotated trace of one rank.
        rows: the events that count as work.
        duration: of each, ns.
        place: position of the step of each, -1 for none.
        steps: how many.
    """
    modules = trace["modules"]
    module = trace.events["module"][rows]
    inside = (place >= 0) & (module >= 0)
    if not inside.any():
        return {}
    key = module[inside].astype(np.int64) * steps + place[inside]
    own = np.bincount(key, duration[inside], len(modules) * steps).astype(np.float64)
    total = with_inner(own.reshape(-1, steps), modules["parent"])
    worked = np.flatnonzero(total.any(axis=1))
    longest = worked[np.argsort(-total[worked].sum(axis=1), kind="stable")[:_MOST_MODULES]]
    low, middle, high = np.quantile(total[longest], _QUANTILES, axis=1) / 1e6
    path = modules.text("path")
    return {
        str(path[row])[:_PATH_LETTERS]: (
            round(float(low[at]), 4), round(float(middle[at]), 4), round(float(high[at]), 4),
        )
        for at, row in enumerate(longest.tolist())
    }  # fmt: skip


def with_inner(own: Floats, parent: Ids) -> Floats:
    """The values of each node of a forest with those below it.

    Args:
        own: of each node, shape (nodes, n).
        parent: the node above, -1 for none, shape (nodes,).
    """
    total = own.copy()
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero(depth == level)
        np.add.at(total, parent[rows], total[rows])
    return total
