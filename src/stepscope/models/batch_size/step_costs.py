"""The time of one step, cut into pieces that belong to one module, operator and stack of lines."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask
from stepscope.facts.annotate.attribution import Attribution
from stepscope.facts.annotate.links.launches import launch_of
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
    """The costs of a step.

    Returns:
        Costs; on a CPU they add up to the step.
    """
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
