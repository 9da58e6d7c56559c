"""When the ranks of a job begin, on one clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.ranks.collectives import Matched
from stepscope.ranks.sketch import Sketch

_NOTABLE_NS = 50_000
_LEAST = 3


def begin_times(sketches: Sequence[Sketch], matched: Matched) -> Floats:
    """When each rank's first step begins, ns since the first does, shape (ranks,).

    Ranks leave a collective at about the same time, so the ends of shared collectives tell how far
    two clocks differ. Ranks that share none with the others begin with the first.
    """
    begin = np.array([one.calls.begin_ns for one in sketches], np.int64)
    columns = matched.columns
    end = (
        begin[matched.rank] + columns.start_ns + columns.duration_ns if len(matched.rank) else begin
    )
    ahead, known = np.zeros(len(sketches), np.int64), np.zeros(len(sketches), np.bool_)
    waiting, members = _largest_first(matched), matched.members
    known[members[waiting[0]][:1] if waiting else []] = True
    while usable := [key for key in waiting if known[members[key]].any()]:
        for key in usable:
            if not known[members[key]].all():
                _compare(matched, key, end, ahead, known)
        waiting = [key for key in waiting if not known[members[key]].all()]
    if not known.any():
        return np.zeros(len(sketches))
    corrected = np.where(known, begin - ahead, (begin - ahead)[known].min())
    result: Floats = (corrected - corrected[known].min()).astype(np.float64)
    return result


def _largest_first(matched: Matched) -> list[int]:
    """The kinds of collectives that end together, those with most ranks first."""
    together = [
        key for key in matched.members
        if matched.keys[key].kind.startswith(("all", "reducescatter", "sendrecv"))
    ]  # fmt: skip
    return sorted(together, key=lambda key: -len(matched.members[key]))


def _compare(matched: Matched, key: int, end: Ids, ahead: Ids, known: np.ndarray) -> None:
    """Set the clocks of the ranks of one kind of collective by those already known."""
    rows = np.flatnonzero((matched.key == key) & (matched.meeting >= 0))
    ranks = np.unique(matched.rank[rows])
    reference = rows[known[matched.rank[rows]]]
    reference = reference[np.argsort(matched.meeting[reference], kind="stable")]
    meetings = matched.meeting[reference]
    first = np.flatnonzero(np.diff(meetings, prepend=-1))
    when = end[reference[first]] - ahead[matched.rank[reference[first]]]
    for rank in ranks[~known[ranks]].tolist():
        mine = rows[matched.rank[rows] == rank]
        place = np.searchsorted(meetings[first], matched.meeting[mine])
        apart = end[mine] - when[place]
        middle = int(np.median(apart))
        known[rank] = True
        if len(apart) >= _LEAST and abs(middle) >= _NOTABLE_NS:
            ahead[rank] = middle
