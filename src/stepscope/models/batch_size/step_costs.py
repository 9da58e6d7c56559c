"""One step: its time, cut into pieces of one module, operator and stack of lines, and its memory at the
peak, by kind; both add up.
"""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask
from stepscope.errors import TraceError
from stepscope.facts.annotate.attribution import Attribution
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.models.memory import owners
from stepscope.models.memory.recorded_memory import RecordedMemory, recorded_memory
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.sets import distinct_rows
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class Cost:
    """Time with all that it belongs to."""

    module: int  # row of the modules table, or -1
    operator: int  # position in `Attribution.operators`; -1 for Python between operators
    lines: int  # position in `Attribution.stacks`, or -1
    stage: int  # position in STAGES, or -1
    backward: bool
    ms: float  # milliseconds, on the device where there is one
    cpu_ms: float
    calls: int


def find_costs(trace: Trace, attribution: Attribution, step: int, scale: float) -> list[Cost]:
    """The costs of a step; on a CPU they add up to it."""
    events = trace.events
    host = (trace["tracks"]["device"] < 0)[events["track"]]
    here = (events["step"] == step) & host
    rows = np.flatnonzero(here & _main_thread(trace, step))
    device_ns = _device_time(trace)
    on_device = bool(device_ns[np.flatnonzero(events["step"] == step)].any())
    names = ("module", "operator", "lines", "stage", "backward")
    groups, place = distinct_rows(*(getattr(attribution, name)[rows] for name in names))

    def total(values: IntArray) -> list[float]:
        sums = np.bincount(place, values[rows].astype(float), len(groups))
        return (sums * scale / 1e6).tolist()

    cpu = total(events["self_ns"])
    own = attribution.root == np.arange(len(events))
    calls = np.bincount(place[own[rows] & ~attribution.backward[rows]], minlength=len(groups))
    times = total(device_ns) if on_device else cpu
    parts = zip(groups, times, cpu, calls.tolist(), strict=True)
    return [
        Cost(module, operator, lines, stage, bool(backward), ms, cpu_ms, count)
        for (module, operator, lines, stage, backward), ms, cpu_ms, count in parts
    ]


def _main_thread(trace: Trace, step: int) -> Mask:
    """On a CPU, time must not be counted twice: other threads run at the same time. Events whose
    work is on a device count on whatever thread they are, as their device time does."""
    events = trace.events
    inside = events["step"] == step
    busy = np.bincount(events["track"][inside], events["self_ns"][inside].astype(float), len(trace["tracks"]))
    steps = events.text("name").where(lambda name: name.startswith("ProfilerStep#"))
    tracks = events["track"][inside & steps]
    main = int(tracks[0]) if len(tracks) else int(busy.argmax())
    launched = np.zeros(len(events), np.bool_)
    launched[trace["launches"]["cpu_event"]] = True
    return np.asarray((events["track"] == main) | launched)


def _device_time(trace: Trace) -> Ids:
    """The device time that each CPU event launched itself, ns, shape (events,)."""
    events, caller = trace.events, launch_of(trace)
    work = events.text("category").mask(*DEVICE_WORK) & (caller >= 0)
    return np.bincount(caller[work], events["duration_ns"][work], len(events)).astype(np.int64)


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
