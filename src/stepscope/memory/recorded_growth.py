"""Memory that each recorded step leaves behind."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.memory.growth import Growth
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_lines import RecordedLines
from stepscope.memory.recorded_memory import RecordedMemory

_LEAST_STEPS = 2  # besides the last, whose tensors may still be in use
_LEAST_OPERATORS = 3
_LEAST_BYTES = 1 << 10
_TRAINING = [KINDS.index(name) for name in ("weights", "buffers", "gradients", "optimizer state")]


def recorded_growth(memory: RecordedMemory, lines: RecordedLines) -> list[tuple[Growth, int]]:
    """What piles up, the largest first, each with the position of its line, -1 where unknown.

    An allocation piles up if it outlives the step after its own and is still there at the end,
    and its line leaves such allocations in every step but the last. Activations of several
    operators are one autograd graph that something keeps; its line is that of its last value.
    """
    left, step = _left_behind(memory)
    steps = len(memory.recording.trace["steps"]) - 1
    if steps < _LEAST_STEPS or not len(left):
        return []
    line = lines.code
    left = left[np.isin(line[left], _lines_of_every_step(line[left], step[left], steps))]
    graph = left[memory.lifetimes.kind[left] == KINDS.index("activations")]
    found = []
    if len(np.unique(memory.recording.root[graph])) >= _LEAST_OPERATORS * steps:
        # Of one graph the last value is what the program holds.
        results = _results(memory, graph)
        last = int(line[results[np.argmax(memory.recording.lifetimes.start[results])]])
        found += _every_step(memory, graph, step, steps, last, keeps_graph=True)
        left = np.setdiff1d(left, graph)
    for one in np.unique(line[left]).tolist():
        found += _every_step(memory, left[line[left] == one], step, steps, one)
    return sorted(found, key=lambda one: -one[0].bytes)


def _results(memory: RecordedMemory, graph: Ids) -> Ids:
    """Values of a graph that were computed from others of it; all, if reads were not recorded."""
    recording, uses = memory.recording, memory.recording.uses
    root = np.append(recording.attribution.root, -1)[uses.event]
    reads = np.isin(uses.allocation, graph) & ~uses.backward
    reads &= root != recording.root[uses.allocation]
    computed = graph[np.isin(recording.root[graph], root[reads])]
    return computed if len(computed) else graph


def _lines_of_every_step(line: Ids, step: Ids, steps: int) -> Ids:
    """A variable holds its value until the next step gives it another: that is in one step only."""
    pairs = np.unique(np.stack([line, step]), axis=1)
    found, count = np.unique(pairs[0], return_counts=True)
    result: Ids = found[count >= steps]
    return result


def _left_behind(memory: RecordedMemory) -> tuple[Ids, Ids]:
    """Allocations of earlier steps that are alive at the end; and each allocation's step."""
    recording = memory.recording
    life, steps = recording.lifetimes, recording.trace["steps"]
    step = np.searchsorted(steps["start_ns"], life.start, side="right") - 1
    training = np.isin(memory.lifetimes.kind[: len(life)], _TRAINING) | (recording.storage >= 0)
    left = np.isposinf(life.end) & np.isfinite(life.start) & ~training
    left &= (step >= 0) & (step < len(steps) - 1)
    return np.flatnonzero(left).astype(np.int64), step.astype(np.int64)


def _every_step(
    memory: RecordedMemory, rows: Ids, step: Ids, steps: int, line: int, keeps_graph: bool = False
) -> list[tuple[Growth, int]]:
    size = int(memory.recording.lifetimes.bytes[rows].sum())
    if len(np.unique(step[rows])) < steps or size < _LEAST_BYTES:
        return []
    return [(Growth(-1, len(rows), size, size // steps, keeps_graph), line)]
