"""How far the clocks of ranks differ, told by the collectives that end on all of them at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.collectives import collective_key
from stepscope.trace.concat import clock_of
from stepscope.trace.trace import Trace

Times = NDArray[np.int64]
Ends = dict[tuple[str, ...], Times]
# Nobody has the result of one of these before all have given their part.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_LEAST = 3
_NOTABLE_NS = 50_000
_TIMES_SPREAD = 5
_SHOWN = 8


class Clocks(NamedTuple):
    """How far each rank's clock is ahead of the first's, ns, and by how many collectives."""

    ahead_ns: list[int]
    collectives: int

    def warnings(self, ranks: Sequence[int]) -> list[tuple[str, str, int]]:
        """Which clocks were set right, and by how much."""
        wrong = [rank for rank, error in zip(ranks, self.ahead_ns, strict=True) if error]
        if not wrong:
            return []
        most = max(map(abs, self.ahead_ns)) / 1e6
        which = ", ".join(map(str, wrong[:_SHOWN])) + (", …" if len(wrong) > _SHOWN else "")
        one = len(wrong) == 1
        whose = (
            f"the clock of rank {which} differs" if one else f"the clocks of ranks {which} differ"
        )
        message = (
            f"{whose} from that of rank {ranks[0]} by {'' if one else 'up to '}{most:.3g} ms and "
            f"{'is' if one else 'are'} set by {self.collectives} collectives, which end on all "
            "ranks at once"
        )
        return [("clocks_set", message, len(wrong))]


def compare_clocks(traces: Sequence[Trace]) -> Clocks:
    """The clocks of the ranks of one job.

    The n-th collective of a kind on a process group is the same on every rank, and ends on all at
    about one moment. Ranks that share no group with the first are compared by way of others. A
    difference counts if it is 50 us or more and five times what it varies by; a rank that nothing
    tells of, or that recorded other steps, has none.

    Args:
        traces: annotated, one a rank.
    """
    ends = [_ends(trace) for trace in traces]
    same = [np.array_equal(trace["steps"]["step"], traces[0]["steps"]["step"]) for trace in traces]
    ahead, most = {0: 0}, 0
    waiting = [rank for rank in range(1, len(traces)) if same[rank]]
    while waiting:
        told = {
            rank: (ahead[other] + difference[0], difference[1])
            for rank in waiting
            for other in sorted(ahead, reverse=True)
            if (difference := _difference(ends[other], ends[rank]))
        }
        if not told:
            break
        ahead |= {rank: error for rank, (error, _) in told.items()}
        most = max([most, *(count for _, count in told.values())])
        waiting = [rank for rank in waiting if rank not in told]
    return Clocks([ahead.get(rank, 0) for rank in range(len(traces))], most)


def _ends(trace: Trace) -> Ends:
    """When the collectives of each kind and group end, on the recording's clock, in order."""
    events = trace.events
    speaks = events.text("category").mask("communication")
    rows = np.flatnonzero(speaks & events.text("name").where(lambda n: bool(_TOGETHER.search(n))))
    found: dict[tuple[str, ...], list[int]] = {}
    end = clock_of(trace.metadata) + events["start_ns"] + events["duration_ns"]
    names = events.text("name")
    for row in rows[np.argsort(end[rows], kind="stable")].tolist():
        key = collective_key(str(names[row]), trace.event_arguments(row))
        found.setdefault(key, []).append(int(end[row]))
    return {key: np.array(times, np.int64) for key, times in found.items()}


def _difference(one: Ends, other: Ends) -> tuple[int, int] | None:
    """How far the other's clock is ahead, ns, and how many collectives say so; None where unknown.

    Kinds of which the two have different numbers tell nothing.
    """
    shared = [key for key in one if key in other and len(one[key]) == len(other[key])]
    apart = np.concatenate([other[key] - one[key] for key in shared] or [np.empty(0, np.int64)])
    if len(apart) < _LEAST:
        return None
    middle = int(np.median(apart))
    spread = float(np.quantile(np.abs(apart - middle), 0.9))
    notable = abs(middle) >= max(_NOTABLE_NS, _TIMES_SPREAD * spread)
    return middle if notable else 0, len(apart)
