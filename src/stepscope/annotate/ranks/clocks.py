"""Clock offsets between ranks, from the collectives that end on all ranks at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.annotate.device.collectives import collective_key
from stepscope.arrays import Times
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.trace import Trace, clock_of

Ends = dict[tuple[str, ...], Times]
# No rank gets the result of one of these before all ranks have contributed.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_LEAST = 3
_NOTABLE_NS = 50_000
_TIMES_SPREAD = 5
_SHOWN = 8


class Clocks(NamedTuple):
    """Offset of each rank's clock to that of the first, ns, and the number of collectives used."""

    ahead_ns: list[int]
    collectives: int

    def warnings(self, ranks: Sequence[int]) -> list[tuple[str, str, int]]:
        """Warn about corrected clocks."""
        wrong = [rank for rank, error in zip(ranks, self.ahead_ns, strict=True) if error]
        if not wrong:
            return []
        most = milliseconds(max(map(abs, self.ahead_ns)))
        which = ", ".join(map(str, wrong[:_SHOWN])) + (", …" if len(wrong) > _SHOWN else "")
        one = len(wrong) == 1
        whose = (
            f"the clock of rank {which} differs" if one else f"the clocks of ranks {which} differ"
        )
        message = (
            f"{whose} from the clock of rank {ranks[0]} by {'' if one else 'up to '}{most}; "
            f"corrected with {self.collectives} collectives, which end on all ranks at once"
        )
        return [("clocks_set", message, len(wrong))]


def compare_clocks(traces: Sequence[Trace]) -> Clocks:
    """The clocks of the ranks of one job.

    The n-th collective of a kind on a process group is the same on every rank, and ends on all
    ranks at about the same time. Ranks that share no group with the first are compared through
    other ranks. An offset counts if it is at least 50 us and five times its spread; a rank without
    shared collectives, or with other steps, has none.

    Args:
        traces: annotated traces, one per rank.
    """
    ends = [_ends(trace) for trace in traces]
    same = [np.array_equal(trace["steps"]["step"], traces[0]["steps"]["step"]) for trace in traces]
    ahead, most = {0: 0}, 0
    waiting = [rank for rank in range(1, len(traces)) if same[rank]]
    while waiting:
        offsets = {
            rank: (ahead[other] + difference[0], difference[1])
            for rank in waiting
            for other in sorted(ahead, reverse=True)
            if (difference := _difference(ends[other], ends[rank]))
        }
        if not offsets:
            break
        ahead |= {rank: error for rank, (error, _) in offsets.items()}
        most = max([most, *(count for _, count in offsets.values())])
        waiting = [rank for rank in waiting if rank not in offsets]
    return Clocks([ahead.get(rank, 0) for rank in range(len(traces))], most)


def _ends(trace: Trace) -> Ends:
    """End times of the collectives of each kind and group, on the clock of the rank."""
    events = trace.events
    communicates = events.text("category").mask("communication")
    rows = np.flatnonzero(
        communicates & events.text("name").where(lambda n: bool(_TOGETHER.search(n)))
    )
    found: dict[tuple[str, ...], list[int]] = {}
    end = clock_of(trace.metadata) + events["start_ns"] + events["duration_ns"]
    names = events.text("name")
    for row in rows[np.argsort(end[rows], kind="stable")].tolist():
        key = collective_key(str(names[row]), trace.event_arguments(row))
        found.setdefault(key, []).append(int(end[row]))
    return {key: np.array(times, np.int64) for key, times in found.items()}


def _difference(first: Ends, second: Ends) -> tuple[int, int] | None:
    """Offset of the second clock, ns, and the number of collectives used; None if unknown.

    Only kinds with the same number of collectives on both ranks count.
    """
    shared = [key for key in first if key in second and len(first[key]) == len(second[key])]
    apart = np.concatenate([second[key] - first[key] for key in shared] or [np.empty(0, np.int64)])
    if len(apart) < _LEAST:
        return None
    middle = int(np.median(apart))
    spread = float(np.quantile(np.abs(apart - middle), 0.9))
    notable = abs(middle) >= max(_NOTABLE_NS, _TIMES_SPREAD * spread)
    return middle if notable else 0, len(apart)
