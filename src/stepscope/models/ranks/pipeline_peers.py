"""Who sends to whom in a pipeline where that is not recorded, as by Gloo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.models.ranks.calls import CallColumns, CallKind
from stepscope.models.ranks.sketch import Sketch

_SEND, _RECEIVE = "send", "recv"
_FIRST, _MIDDLE, _LAST = "first", "middle", "last"


def with_peers(sketches: Sequence[Sketch]) -> list[Sketch]:
    """The sketches with the peers of their sends and receives, where a pipeline shows them.

    The first stage begins with a send, the last makes as many calls as it, and a stage between
    them twice as many. The ranks of a pipeline are next to each other, or those of a stage are.
    """
    ranks = [_RankCalls.of(one) for one in sketches]
    known = list(sketches)
    for chain in _chains(ranks):
        around = [-1, *(sketches[row].rank for row in chain), -1]
        for place, row in enumerate(chain):
            known[row] = ranks[row].with_peers(around[place], around[place + 2])
    return known


@dataclass(frozen=True)
class _RankCalls:
    """The sends and receives of a rank whose peers are unknown, in the order in which they end.

    Attributes:
        rows: of the columns.
        ways: `send` or `recv` of each.
    """

    sketch: Sketch
    columns: CallColumns
    rows: Ids
    ways: list[str]

    @classmethod
    def of(cls, sketch: Sketch) -> _RankCalls:
        ways = [_way(kind) for kind in sketch.calls.kinds]
        if not any(ways):
            return cls(sketch, sketch.calls.columns(), np.zeros(0, np.int64), [])
        columns = sketch.calls.columns()
        rows = np.flatnonzero(np.array([bool(way) for way in ways])[columns.kind])
        ends = columns.start_ns[rows] + columns.duration_ns[rows]  # one may begin to receive early
        rows = rows[np.lexsort((ends, columns.step[rows]))]
        return cls(sketch, columns, rows, [ways[kind] for kind in columns.kind[rows].tolist()])

    def with_peers(self, before: int, after: int) -> Sketch:
        """The sketch with these neighbors, -1 for none."""
        peers = self._peers(before, after)
        calls, kind = self.sketch.calls, self.columns.kind.copy()
        kinds = {one: number for number, one in enumerate(calls.kinds)}
        for row, way, peer in zip(self.rows.tolist(), self.ways, peers, strict=True):
            one = msgspec.structs.replace(calls.kinds[kind[row]], kind=way, peer=peer)
            kind[row] = kinds.setdefault(one, len(kinds))
        packed = self.columns._replace(kind=kind).pack()
        named = msgspec.structs.replace(calls, kinds=list(kinds), packed=packed)
        return msgspec.structs.replace(self.sketch, calls=named)

    def _peers(self, before: int, after: int) -> list[int]:
        """The peer of each call: backward sends go back, and what is sent on was received so."""
        if before < 0 or after < 0:
            return [max(before, after)] * len(self.rows)
        places = self.sketch.calls.places
        peers, receives_from = [-1] * len(self.rows), after
        for number in range(len(self.rows) - 1, -1, -1):
            if self.ways[number] == _RECEIVE:
                peers[number] = receives_from
                continue
            is_back = "backward" in places[self.columns.place[self.rows[number]]]
            peers[number], receives_from = (before, after) if is_back else (after, before)
        return peers


def _way(kind: CallKind) -> str:
    """`send` or `recv`; empty for other calls, and where the peer is known."""
    name = kind.kind.rpartition(":")[2]
    return name if name in (_SEND, _RECEIVE) and kind.peer < 0 else ""


def _chains(ranks: Sequence[_RankCalls]) -> list[list[int]]:
    """The ranks of each pipeline, by stage, as positions; none where the calls show no pipelines."""
    roles = _roles(ranks)
    firsts = roles.count(_FIRST)
    if not firsts or len(roles) % firsts or len(roles) // firsts < 2:
        return []
    length = len(roles) // firsts
    expected = [_FIRST, *[_MIDDLE] * (length - 2), _LAST]
    order = sorted(range(len(roles)), key=lambda row: ranks[row].sketch.rank)
    together = [order[first : first + length] for first in range(0, len(order), length)]
    apart = [order[first::firsts] for first in range(firsts)]
    for chains in (together, apart):
        if all([roles[row] for row in chain] == expected for chain in chains):
            return chains
    return []


def _roles(ranks: Sequence[_RankCalls]) -> list[str]:
    """What each rank is in its pipeline; empty for one that is in none."""
    counts = [len(one.rows) / max(len(np.unique(one.columns.step[one.rows])), 1) for one in ranks]
    begins = [one.ways[0] if one.ways else "" for one in ranks]
    least = min(counts, default=0.0)
    return [_role(way, count / least if least else 0.0) for count, way in zip(counts, begins, strict=True)]


def _role(begins: str, calls: float) -> str:
    """By the first call, and how often a rank calls relative to the one that does so least."""
    if calls == 1:
        return _FIRST if begins == _SEND else _LAST
    return _MIDDLE if calls == 2 and begins == _RECEIVE else ""
