"""Memory that is never released: allocations of one call stack that add up from step to step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Counts, Floats
from stepscope.trace.trace import Trace

_LEAST_CYCLES = 3
_LEAST_SHARE_OF_CYCLES = 0.6
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Growth:
    """Allocations of one call stack that pile up.

    Attributes:
        stack: stacks.id.
        count: how many are alive at the end.
        bytes: how much they hold.
        bytes_per_cycle: how much is added each time the memory use rises and falls again.
        keeps_graph: whether it is what forward keeps for a backward that never comes.
    """

    stack: int
    count: int
    bytes: int
    bytes_per_cycle: int
    keeps_graph: bool = False


def find_growth(trace: Trace, device: int, used: tuple[Floats, Counts]) -> list[Growth]:
    """Call stacks whose allocations pile up, the largest first.

    Memory use rises and falls once in each step, which divides the history into cycles. What was
    allocated in most cycles and lives on at the end is kept from step to step.

    Args:
        trace: a memory snapshot.
        device: its number.
        used: the device's bytes in use over time, as `Lifetimes.over_time` gives them.
    """
    starts = _cycle_starts(*used)
    if len(starts) < _LEAST_CYCLES:
        return []
    table = trace["allocations"]
    alive = np.flatnonzero(
        (table["device"] == device) & (table["start_ns"] >= 0) & (table["end_ns"] < 0)
        & (table["stack"] >= 0)
    )  # fmt: skip
    cycle = np.searchsorted(starts, table["start_ns"][alive], side="right")
    stacks, group = np.unique(table["stack"][alive], return_inverse=True)
    pairs = np.unique(np.stack([group, cycle]), axis=1)
    cycles = np.bincount(pairs[0], minlength=len(stacks))
    size = np.bincount(group, table["bytes"][alive], len(stacks)).astype(np.int64)
    count = np.bincount(group, minlength=len(stacks))
    enough = max(_LEAST_CYCLES, _LEAST_SHARE_OF_CYCLES * len(starts))
    grows = np.flatnonzero((cycles >= enough) & (size >= _LEAST_BYTES))
    order = grows[np.argsort(-size[grows], kind="stable")]
    return [
        Growth(int(stacks[row]), int(count[row]), int(size[row]), int(size[row] // cycles[row]))
        for row in order
    ]


def _cycle_starts(time: Floats, used: Counts) -> Floats:
    """When the memory use passes upwards through the middle of its recent low and high.

    A leak lifts the whole curve, so the middle is that of the line through its lows and highs.
    """
    level = used.astype(np.float64)
    if len(level) < 2 * _LEAST_CYCLES:
        return np.zeros(0)
    position = np.arange(len(level), dtype=np.float64)
    slope, offset = np.polyfit(position, level, 1)
    flat = level - (slope * position + offset)
    high, low = flat.max(), flat.min()
    above = flat > low + (high - low) * 0.6
    below = flat < low + (high - low) * 0.4
    state = np.where(above, 1, np.where(below, -1, 0))
    known = np.flatnonzero(state)
    rises = known[1:][(state[known][1:] == 1) & (state[known][:-1] == -1)]
    times: Floats = time[rises]
    return times
