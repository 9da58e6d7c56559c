"""The contents of memory at its peak, and what forward keeps for backward, by kind; they add up."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids
from stepscope.errors import TraceError
from stepscope.facts.annotate.attribution import Attribution
from stepscope.models.memory import owners
from stepscope.models.memory.recorded_memory import RecordedMemory, recorded_memory
from stepscope.trace.trace import Trace

KINDS = (
    "weights",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "temporaries",
    "untracked",
)
"""`stepscope.models.memory.owners.KINDS` as `stepscope batch --json` names and orders them."""
_NAMES = ["untracked" if kind == "unknown" else kind.replace(" ", "_") for kind in owners.KINDS]


@dataclass(frozen=True)
class Footprint:
    """The peak."""

    step: int
    memory: RecordedMemory | None = None  # None where no allocation was recorded
    peak: Ids | tuple[()] = ()  # the allocations that are alive at the peak, rows of `memory.lifetimes`
    kept: Ids | tuple[()] = ()  # the activations of that step that forward keeps for backward

    def sizes(self, rows: Ids | tuple[()]) -> list[tuple[int, str, int]]:
        """Allocation, kind and bytes of some rows."""
        if self.memory is None:
            return []
        life = self.memory.lifetimes
        kinds = (_NAMES[code] for code in life.kind[rows].tolist())
        return list(zip(np.asarray(rows).tolist(), kinds, life.bytes[rows].tolist(), strict=True))

    def split(self) -> dict[str, int]:
        """Bytes by kind; they add up to the peak; empty where memory is unknown."""
        result = dict.fromkeys(KINDS if self.memory else (), 0)
        for _, kind, size in self.sizes(self.peak):
            result[kind] += size
        return result


def find_footprint(trace: Trace, attribution: Attribution) -> Footprint:
    """The highest peak of the recorded steps; of the first step where nothing was allocated."""
    steps = trace["steps"]
    try:
        memory = recorded_memory(trace, attribution=attribution)
    except TraceError:
        return Footprint(int(steps["step"][0]))
    times, level = memory.lifetimes.over_time()
    inside = np.flatnonzero((times >= steps["start_ns"][0]) & (times < steps["end_ns"][-1]))
    if not len(inside):
        return Footprint(int(steps["step"][0]))
    time = float(times[inside[level[inside].argmax()]])
    number = int(np.searchsorted(steps["start_ns"], time, side="right")) - 1
    turn = _end_of_forward(trace, int(steps["step"][number]), int(steps["end_ns"][number]))
    activations = memory.lifetimes.kind == owners.KINDS.index("activations")
    return Footprint(
        int(steps["step"][number]),
        memory,
        np.flatnonzero(memory.lifetimes.alive(time)),
        np.flatnonzero(memory.lifetimes.alive(turn - 1) & activations),
    )


def _end_of_forward(trace: Trace, step: int, end: int) -> int:
    """When the step's first backward event begins; the end of the step where it has none."""
    events = trace.events
    chosen = (events["step"] == step) & (events["forward_event"] >= 0)
    starts = events["start_ns"][chosen]
    return int(starts.min()) if len(starts) else end
