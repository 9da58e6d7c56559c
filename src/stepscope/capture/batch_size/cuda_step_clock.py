"""How long steps take on a GPU: from when it passes the end of one to that of the next."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from stepscope.capture.batch_size.step_clock import StepClock

_Event: Any = torch.cuda.Event


class CudaStepClock(StepClock):
    """Notes the end of each step without ever making the CPU wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[Any] = []

    def tick(self) -> None:
        """A step ends here, on the device."""
        super().tick()
        event = _Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def lengths_ms(self) -> list[float]:
        """The length of each step; waits for the device."""
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in itertools.pairwise(self._events)]
