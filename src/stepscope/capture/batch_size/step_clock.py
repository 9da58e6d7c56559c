"""How long steps take. On a GPU, from when the device passes the end of one to that of the next."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

_Event: Any = torch.cuda.Event


class StepClock:
    """Notes the end of each step without ever making the CPU wait for the device."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._ends: list[Any] = []
        self._begin = time.perf_counter()

    def tick(self) -> None:
        """A step ends here; the first tick is where the first one begins."""
        if self._on_gpu:
            end = _Event(enable_timing=True)
            end.record()
            self._ends.append(end)
        else:
            self._ends.append(time.perf_counter())

    @property
    def steps(self) -> int:
        """Steps timed."""
        return max(0, len(self._ends) - 1)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begin

    def lengths_ms(self) -> list[float]:
        """The length of each step; waits for the device."""
        if not self._on_gpu:
            return [1e3 * (end - start) for start, end in itertools.pairwise(self._ends)]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in itertools.pairwise(self._ends)]
