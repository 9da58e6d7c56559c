"""The time of a thread divided among its calls, so that no moment counts twice.

Recorders write calls that overlap without nesting (a range that ends while the frame that closes
it runs), and calls that exceed their parent by a rounding error. Here an overlap belongs to the
call that began first, and a call is clipped to its parent. So the shares of all calls on a thread
add up to the time in which it ran any call.
"""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Times
from stepscope.contexts.call_paths import levels
from stepscope.trace.nesting import depths
from stepscope.trace.table import Table

_FAR = 2**62


def own_shares(events: Table) -> Times:
    """The self time of each event, ns, shape (events,).

    Where calls nest cleanly, this is `events.self_ns`.
    """
    parent = events["parent"].astype(np.int64)
    length = _shares(events, parent)
    inside = np.flatnonzero(parent >= 0)
    within = np.bincount(parent[inside], length[inside], len(parent))
    own: Times = length - within.astype(np.int64)
    return own


def _shares(events: Table, parent: Times) -> Times:
    """The time of each event, nested calls included, ns."""
    low = events["start_ns"].copy()
    high = low + events["duration_ns"]
    group = np.where(parent >= 0, parent, len(parent) + events["track"])
    for rows in levels(depths(events["parent"])):
        rows = rows[np.argsort(group[rows], kind="stable")]
        above = parent[rows]
        if above[0] >= 0:
            low[rows] = np.maximum(low[rows], low[above])
            high[rows] = np.minimum(high[rows], high[above])
        low[rows] = np.maximum(low[rows], _ended_before(group[rows], high[rows]))
        high[rows] = np.maximum(low[rows], high[rows])
    length: Times = high - low
    return length


def _ended_before(group: Times, end: Times) -> Times:
    """The latest end among the earlier rows of each row's group, `-_FAR` for the first row."""
    fresh = np.diff(group, prepend=group[:1] - 1) != 0
    base, number = int(end.min()), np.cumsum(fresh) - 1
    stride = int(end.max()) - base + 1
    if stride * (int(number[-1]) + 1) >= _FAR:
        order = np.unique(end, return_inverse=True)
        lifted = np.maximum.accumulate(order[1] + number * len(order[0]))
        reach = order[0][lifted - number * len(order[0])]
    else:
        # Groups are offset to disjoint ranges, so that one running maximum serves all of them.
        reach = np.maximum.accumulate(end - base + number * stride) - number * stride + base
    before: Times = np.roll(reach, 1)
    before[fresh] = -_FAR
    return before
