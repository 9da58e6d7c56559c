"""Memory that is never released: what adds up from step to step."""

import msgspec
import numpy as np

from stepscope.base.arrays import Counts, Floats, Ids, Mask
from stepscope.models.memory.owners import ACTIVATIONS, KEPT
from stepscope.models.memory.recorded_memory import RecordedLines, RecordedMemory
from stepscope.trace.row_order import place_in_group, places_among, rows_by_key
from stepscope.trace.trace import Trace

# Of a snapshot, whose steps are not known.
_LEAST_CYCLES = 3  # rises and falls of the memory in use, about one for each step
_LEAST_SHARE_OF_CYCLES = 0.6  # that add an allocation which is never released
_LEAST_BYTES = 1 << 20  # of a call stack: less is not worth a finding
# Of recorded steps.
_LEAST_STEPS = 2  # besides the last, whose tensors may still be in use
_LEAST_OPERATORS = 3  # in each step that leave activations: they are a graph
_LEAST_BYTES_OF_STEPS = 1 << 10  # of a line in all steps: less is not worth a finding


class Growth(msgspec.Struct, frozen=True):
    """Allocations of one call stack that pile up."""

    stack: int  # stacks.id
    count: int  # how many are alive at the end
    bytes: int
    bytes_per_cycle: int  # how much is added each time the memory use rises and falls again
    keeps_graph: bool = False  # whether it is what forward keeps for a backward that never comes


def find_growth(trace: Trace, device: int, used: tuple[Floats, Counts]) -> list[Growth]:
    """Call stacks whose allocations pile up, the largest first.

    Memory use rises and falls once in each step, which divides the history into cycles. What was
    allocated in most cycles and lives on at the end is kept from step to step, unless as many of
    its size were released that were there before.
    """
    starts = _cycle_starts(*used)
    if len(starts) < _LEAST_CYCLES:
        return []
    table = trace["allocations"]
    here = table["device"] == device
    alive = np.flatnonzero(here & (table["start_ns"] >= 0) & (table["end_ns"] < 0) & (table["stack"] >= 0))
    released = here & (table["start_ns"] < 0) & (table["end_ns"] >= 0)
    alive = alive[~_replaces(table["bytes"][alive], table["stack"][alive], table["bytes"][released])]
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


def _replaces(size: Counts, owner: Ids, released: Counts) -> Mask:
    """Which allocations, in order of time, take the place of a block of their size that was released.

    Of one size the owner with most allocations replaces first, and its earliest.
    """
    _, group, count = np.unique(owner, return_inverse=True, return_counts=True)
    order = np.lexsort((np.arange(len(size)), -count[group], size))
    sizes, available = np.unique(released, return_counts=True)
    taken = np.zeros(len(size), np.bool_)
    taken[order] = place_in_group(size[order]) < np.append(available, 0)[places_among(sizes, size[order])]
    return taken


def _cycle_starts(time: Floats, used: Counts) -> Floats:
    """When the memory use passes upwards through the middle of its recent low and high.

    A leak lifts the whole curve, so the middle is that of the line through its lows and highs. What
    is made before the first step, as the weights, is below all lows and belongs to no cycle.
    """
    level = used.astype(np.float64)
    fallen = np.maximum.accumulate(level) - level
    fall = int(np.argmax(fallen >= fallen.max(initial=0) / 2)) if len(level) else 0
    made = np.flatnonzero(level[:fall] <= level[fall:].min(initial=np.inf))[-1:]
    time, level = time[made.sum() :], level[made.sum() :]
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
    return np.asarray(time[rises])


def recorded_growth(memory: RecordedMemory, lines: RecordedLines) -> list[tuple[Growth, int]]:
    """What piles up, the largest first, each with the position of its line, -1 where unknown.

    An allocation piles up if it outlives the step after its own and is still there at the end,
    and its line leaves such allocations in every step but the last. Activations of several
    operators are one autograd graph that something keeps; its line is that of its last value.
    """
    left, step = _left_behind(memory, lines)
    steps = len(memory.recording.trace["steps"]) - 1
    if steps < _LEAST_STEPS or not len(left):
        return []
    line = lines.code
    # A variable holds its value until the next step gives it another: that is in one step only.
    pairs = np.unique(np.stack([line[left], step[left]]), axis=1)
    held, count = np.unique(pairs[0], return_counts=True)
    left = left[np.isin(line[left], held[count >= steps])]
    graph = left[memory.lifetimes.kind[left] == ACTIVATIONS]
    found = []
    if len(np.unique(memory.recording.root[graph])) >= _LEAST_OPERATORS * steps:
        # Of one graph the last value is what the program holds.
        results = _results(memory, graph)
        last = int(line[results[np.argmax(memory.recording.lifetimes.start[results])]])
        found += _every_step(memory, graph, step, steps, last, keeps_graph=True)
        left = np.setdiff1d(left, graph)
    for number, rows in rows_by_key(line, left).items():
        found += _every_step(memory, rows, step, steps, number)
    return sorted(found, key=lambda growth: -growth[0].bytes)


def _results(memory: RecordedMemory, graph: Ids) -> Ids:
    """Values of a graph that were computed from others of it; all, if reads were not recorded."""
    recording, uses = memory.recording, memory.recording.uses
    reads = np.isin(uses.allocation, graph) & ~uses.backward
    reads &= uses.root != recording.root[uses.allocation]
    computed = graph[np.isin(recording.root[graph], uses.root[reads])]
    return computed if len(computed) else graph


def _left_behind(memory: RecordedMemory, lines: RecordedLines) -> tuple[Ids, Ids]:
    """Allocations of earlier steps that are alive at the end and replace none; each allocation's step."""
    recording = memory.recording
    life, steps = recording.lifetimes, recording.trace["steps"]
    step = np.searchsorted(steps["start_ns"], life.start, side="right") - 1
    training = np.isin(memory.lifetimes.kind[: len(life)], KEPT) | (recording.storage >= 0)
    left = np.isposinf(life.end) & np.isfinite(life.start) & ~training
    left &= (step >= 0) & (step < len(steps) - 1)
    rows = np.flatnonzero(left).astype(np.int64)
    released = np.isneginf(life.start) & np.isfinite(life.end) & ~training
    code = lines.code[rows]
    new = ~_replaces(life.bytes[rows], code, life.bytes[released])
    return rows[np.isin(code, code[new])], step.astype(np.int64)


def _every_step(
    memory: RecordedMemory, rows: Ids, step: Ids, steps: int, line: int, keeps_graph: bool = False
) -> list[tuple[Growth, int]]:
    size = int(memory.recording.lifetimes.bytes[rows].sum())
    if len(np.unique(step[rows])) < steps or size < _LEAST_BYTES_OF_STEPS:
        return []
    return [(Growth(-1, len(rows), size, size // steps, keeps_graph), line)]
