"""Times training steps without recording them: what a step takes when nobody looks."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch

from stepscope.capture.cycle import StepCycle
from stepscope.capture.optimizers import OptimizerWatch


class Stopwatch:
    """Takes the time from the end of each step to the end of the next, and then ends the program.

    Args:
        warmup: steps to let pass first.
        steps: steps to time.
        stop: what to raise once they are timed.
    """

    def __init__(self, warmup: int, steps: int, stop: BaseException) -> None:
        self._warmup, self._steps, self._stop = warmup, steps, stop
        self._cycle = StepCycle()
        self._ends_ns: list[tuple[int, int]] = []
        self._watch = OptimizerWatch(self._stepped)

    def finish(self) -> dict[str, Any]:
        """The length of each timed step, and this process's CPU time in it, ns."""
        self._watch.close()
        ends = self._ends_ns[max(self._warmup - 1, 0) :]
        wall, cpu = ([b[n] - a[n] for a, b in pairwise(ends)][: self._steps] for n in (0, 1))
        return {"steps_ns": wall, "cpu_ns": cpu, "steps_seen": len(self._ends_ns)}

    def _stepped(self, optimizer: Any) -> None:
        if not self._cycle.ends_step(optimizer):
            return
        _wait_for_device()
        self._ends_ns.append((time.perf_counter_ns(), time.process_time_ns()))
        if len(self._ends_ns) >= max(self._warmup, 1) + self._steps:
            raise self._stop


def _wait_for_device() -> None:
    """A step has ended when its device work has; without that, steps would not be comparable."""
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
