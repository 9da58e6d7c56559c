"""The peak memory of the step with changes, from the lifetimes of its recorded allocations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import TraceError
from stepscope.memory.recorded_memory import RecordedMemory, recorded_memory
from stepscope.trace.trace import Trace
from stepscope.whatif.change import Request


@dataclass(frozen=True)
class MemoryPrediction:
    """The effect of some changes on the peak of allocated bytes.

    Attributes:
        device: whose memory.
        measured_bytes: the recorded peak.
        predicted_bytes: the peak of the changed lifetimes.
        error: how far such predictions were from measurements, relative; None where none was made.
        unknown: changes whose effect on memory is not known; it counts as none.
    """

    device: str
    measured_bytes: int
    predicted_bytes: int
    error: float | None
    unknown: tuple[str, ...] = ()

    @property
    def most_bytes(self) -> int:
        """The prediction and its error."""
        return round(self.predicted_bytes * (1 + (self.error or 0.0)))


def recorded(trace: Trace) -> RecordedMemory | None:
    """The memory of the recorded steps; None if allocations of one rank were not recorded."""
    try:
        return recorded_memory(trace)
    except TraceError:
        return None


def predict_memory(memory: RecordedMemory, requests: Sequence[Request]) -> MemoryPrediction:
    """The peak with the changes, applied in this order.

    Args:
        memory: of the recorded steps.
        requests: the changes.

    Raises:
        ChangeError: if the effect of one on these steps cannot be predicted, with the reason.
    """
    changed = memory
    for request in requests:
        change = request.change.memory
        if change is not None:
            known = inspect.signature(change).parameters
            values = {name: value for name, value in request.values.items() if name in known}
            changed = change(changed, **values)
    errors = [one.change.memory_error for one in requests if one.change.memory]
    return MemoryPrediction(
        device=memory.recording.device,
        measured_bytes=memory.lifetimes.peak()[0],
        predicted_bytes=changed.lifetimes.peak()[0],
        error=None if None in errors else max((one or 0.0 for one in errors), default=0.0),
        unknown=tuple(str(one) for one in requests if one.change.memory is None),
    )
