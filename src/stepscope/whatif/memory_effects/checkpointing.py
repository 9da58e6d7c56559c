"""Activation checkpointing: what forward keeps is released, and made again in backward."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from stepscope.annotate.range_names import MODULE_RANGE
from stepscope.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.memory.lifetimes import Lifetimes
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.memory.recorded_memory import RecordedMemory

_INSTANT = 0.5  # the repeated forward takes no time on the recorded clock, which counts ns
_RANDOM_STATE_BYTES = 5056  # of torch.get_rng_state()
_ACTIVATIONS = KINDS.index("activations")


@dataclass(frozen=True)
class _Call:
    """One call of a checkpointed module: its forward, and its backward, ns."""

    begin: float
    end: float
    backward: float
    done: float


def checkpointed(memory: RecordedMemory, module: str, **_: float) -> RecordedMemory:
    """The memory if calls of some modules are checkpointed.

    What forward of such a module keeps for its backward is released as soon as forward no longer
    reads it, and the module's input is kept. When its backward begins, all is allocated again.

    Args:
        memory: of the recorded steps.
        module: glob for module paths; of nested matches the outermost counts.
        _: what else the change takes; memory does not depend on it.

    Raises:
        ChangeError: if no recorded call matches.

    Source: `torch.utils.checkpoint`, with `use_reentrant=False`.
    """
    calls = _calls(memory.recording, module)
    if not calls:
        raise ChangeError(
            f"checkpoint: no forward and backward of a module that matches {module!r}"
        )
    for call in calls:
        memory = memory.with_lifetimes(_repeated(memory, call))
    return memory


def _calls(recording: AllocationRecord, module: str) -> list[_Call]:
    events = recording.trace.events
    rows = np.flatnonzero(events.text("name").where(lambda name: _matches(name, module)))
    begin, end = recording.starts[rows], recording.ends[rows]
    around = np.maximum.accumulate(np.append(-np.inf, end[:-1])) if len(rows) else end
    outermost = end > around
    linked = np.flatnonzero(events["forward_event"] >= 0)
    linked = linked[np.argsort(recording.starts[events["forward_event"][linked]], kind="stable")]
    forward = recording.starts[events["forward_event"][linked]]
    found = []
    for low, high in zip(begin[outermost].tolist(), end[outermost].tolist(), strict=True):
        own = linked[slice(*np.searchsorted(forward, [low, high]))]
        if len(own):
            first, last = recording.starts[own].min(), recording.ends[own].max()
            found.append(_Call(low, high, float(first), float(last)))
    return found


def _matches(name: str, module: str) -> bool:
    path = name.removeprefix(MODULE_RANGE)
    return path != name and fnmatchcase(path.strip(), module)


def _repeated(memory: RecordedMemory, call: _Call) -> Lifetimes:
    life = memory.lifetimes
    inside = (life.start >= call.begin) & (life.start < call.end)
    kept = inside & (life.end > call.end) & (life.kind == _ACTIVATIONS)
    saved_inside, saved_elsewhere, last_read = _needs(memory.recording, call, life)
    ends_early = kept & saved_inside & ~saved_elsewhere
    end = np.where(ends_early, np.minimum(life.end, last_read), life.end)
    # A module's input is kept until its forward was repeated and its backward is over.
    given = (life.start < call.begin) & _read_inside(memory.recording, call, life)
    given &= np.isin(life.kind, [_ACTIVATIONS, KINDS.index("inputs")])
    end = np.where(given, np.maximum(end, call.done), end)
    again = np.flatnonzero(inside & (ends_early | (life.end <= call.end)))
    repeated = life.changed(end=end).plus(_copies(life, again, call))
    return repeated.plus(_random_state(call)) if memory.recording.device == "cpu" else repeated


def _copies(life: Lifetimes, rows: Ids, call: _Call) -> Lifetimes:
    """What the repeated forward allocates just before backward begins."""
    copy = life.take(rows)
    return copy.changed(
        start=_again(copy.start, call),
        end=np.where(copy.end <= call.end, _again(copy.end, call), copy.end),
    )


def _random_state(call: _Call) -> Lifetimes:
    """The state of the CPU's random numbers, which the checkpoint keeps to repeat dropout."""
    return Lifetimes(
        bytes=np.array([_RANDOM_STATE_BYTES]),
        start=np.array([call.begin]),
        end=np.array([call.done]),
        kind=np.array([KINDS.index("unknown")]),
        recorded=np.array([-1]),
    )


def _again(time: Floats, call: _Call) -> Floats:
    """Moments of forward, in the instant before backward begins."""
    share = (time - call.begin) / max(call.end - call.begin, 1.0)
    return call.backward - _INSTANT * (1 - share)


def _needs(recording: AllocationRecord, call: _Call, life: Lifetimes) -> tuple[Mask, Mask, Floats]:
    """For each row: whether backward of this call, or of others, needs it; and its last read.

    The last read by forward is the end of that operator, or of the one that made it.
    """
    uses = recording.uses
    saver = recording.starts[uses.saver]
    own = uses.backward & (saver >= call.begin) & (saver < call.end)
    other = uses.backward & (uses.saver >= 0) & ~own
    marks = np.zeros((2, len(recording) + 1), np.bool_)
    marks[0, uses.allocation[own]] = True
    marks[1, uses.allocation[other]] = True
    recorded = life.recorded
    return marks[0][recorded], marks[1][recorded], recording.last_read[recorded]


def _read_inside(recording: AllocationRecord, call: _Call, life: Lifetimes) -> Mask:
    uses = recording.uses
    start = recording.starts[uses.event]
    inside = ~uses.backward & (start >= call.begin) & (start < call.end)
    read = np.zeros(len(recording) + 1, np.bool_)
    read[uses.allocation[inside]] = True
    result: Mask = read[life.recorded]
    return result
