"""The memory of recorded steps: every allocation with its lifetime, its purpose and its users."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.annotate.attribution import Attribution, attribute
from stepscope.arrays import Codes, Codes8, Floats, Mask
from stepscope.errors import TraceError
from stepscope.memory.lifetimes import Lifetimes
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.trace.memory_schema import STORAGE_KINDS
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_FORWARD = ("forward", "loss")
_UPDATING = ("optimizer", "zero_grad")


@dataclass(frozen=True, eq=False)
class RecordedMemory:
    """The allocations of one device over the recorded steps.

    Attributes:
        recording: the allocations as they were recorded.
        lifetimes: of the allocations with their kinds, changed or not.
    """

    recording: AllocationRecord
    lifetimes: Lifetimes

    def with_lifetimes(self, lifetimes: Lifetimes) -> RecordedMemory:
        """The same recording with changed lifetimes."""
        return replace(self, lifetimes=lifetimes)


def recorded_devices(trace: Trace) -> list[str]:
    """The devices whose allocations a trace holds, those with most bytes first."""
    table = trace["memory"]
    names = table.text("device")
    held = np.bincount(names.codes, np.abs(table["bytes"]), len(names.values))
    order = np.argsort(-held, kind="stable")
    return [names.values[code] for code in order if held[code]]


def refuse_several_ranks(trace: Trace) -> None:
    """Each rank is another process, whose memory does not add up with that of others.

    Raises:
        TraceError: if the trace holds the allocations of several ranks.
    """
    ranks = np.unique(trace["memory"]["rank"])
    if len(ranks) > 1:
        raise TraceError(
            f"{trace.metadata.source} holds the allocations of {len(ranks)} ranks, each of another "
            "process; open the file of one rank"
        )


def has_addresses(trace: Trace, device: str) -> bool:
    """Whether each recorded change of a device has an address, so that lifetimes are known."""
    table = trace["memory"]
    return bool((table["address"][table.text("device").mask(device)] != -1).all())


def recorded_memory(
    trace: Trace, device: str | None = None, attribution: Attribution | None = None
) -> RecordedMemory:
    """The memory of a capture's steps.

    Args:
        trace: a capture with `--memory`, or any trace with allocations.
        device: one of `recorded_devices`; by default that with most bytes, a GPU if there is one.
        attribution: of the trace's events, if it is known already.

    Raises:
        TraceError: if the trace holds no allocation, none with an address, or those of several
            ranks, whose addresses have nothing to do with each other.
    """
    devices = recorded_devices(trace)
    if not devices:
        raise TraceError(
            f"{trace.metadata.source} holds no allocation; record it with: "
            "stepscope run --memory SCRIPT"
        )
    refuse_several_ranks(trace)
    gpus = [name for name in devices if name != "cpu"]
    chosen = device or (gpus or devices)[0]
    if not has_addresses(trace, chosen):
        raise TraceError(
            f"{trace.metadata.source} records allocations of {chosen} without addresses, so it is "
            "unknown which release ends which allocation; record it with a newer PyTorch"
        )
    recording = AllocationRecord.of(trace, chosen, attribution or attribute(trace))
    return RecordedMemory(recording, recording.lifetimes.changed(kind=_kinds(recording)))


def _kinds(recording: AllocationRecord) -> Codes:
    """What each recorded allocation is for."""
    code = {name: number for number, name in enumerate(KINDS)}
    life, stage = recording.lifetimes, recording.stage
    released = np.append(recording.attribution.stage, -1)[recording.released_by]
    in_root = life.end <= recording.ends[recording.root]
    forward, backward = _in(stage, *_FORWARD), _in(stage, "backward")
    updating = _in(stage, *_UPDATING)
    first_forward = _first_forward(recording)
    fed = _in(stage, "data_loading", "transfer")
    fed |= _in(stage, "other") & (life.start < first_forward) & np.isfinite(life.start)
    kind = np.full(len(life), code["unknown"], np.int64)
    kind[fed] = code["inputs"]
    kind[forward] = code["activations"]
    kind[backward] = code["temporaries"]
    # Gradients outlive backward: zero_grad releases them, or the next one replaces them.
    kind[backward & ~_in(released, "backward") & ~in_root] = code["gradients"]
    kind[updating] = code["temporaries"]
    kind[updating & np.isposinf(life.end)] = code["optimizer state"]
    kind[(forward | backward | updating) & in_root] = code["temporaries"]
    names = [
        code[STORAGE_KINDS.get(kind or "", "unknown")]
        for kind in recording.trace["storages"].text("kind")
    ]
    kept = recording.storage >= 0
    kind[kept] = np.array([*names, code["unknown"]], np.int64)[recording.storage[kept]]
    return kind


def _in(stage: Codes8, *names: str) -> Mask:
    return np.isin(stage, [STAGES.index(name) for name in names])


def _first_forward(recording: AllocationRecord) -> Floats:
    """When forward of the step in which each allocation begins starts; inf without one."""
    steps, events = recording.trace["steps"], recording.trace.events
    if not len(steps):
        return np.full(len(recording.lifetimes), np.inf)
    rows = np.flatnonzero(np.isin(events["stage"], [STAGES.index(one) for one in _FORWARD]))
    starts = np.append(events["start_ns"][rows].astype(np.float64), np.inf)
    first = starts[np.searchsorted(starts, steps["start_ns"])]
    step = np.searchsorted(steps["start_ns"], recording.lifetimes.start, side="right") - 1
    return first[np.maximum(step, 0)]
