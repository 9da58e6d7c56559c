"""What the longest modules of a rank take, each with those inside it."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.modules.costs import subtree_totals
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
    total = subtree_totals(own.reshape(-1, steps), modules["parent"])
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
