"""Times training steps without recording them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from stepscope.capture.clock_readings import Reading
from stepscope.capture.optimizers import OptimizerWatch
from stepscope.capture.part_timer import PARTS, PartTimer
from stepscope.capture.step_detector import StepDetector


class StepTimer:
    """Measures the time from the end of each step to the end of the next, then ends the program.

    Also measures the share spent loading batches and in optimizers.

    Args:
        warmup: steps to skip first.
        steps: steps to time.
        stop: the exception to raise when they are timed.
    """

    def __init__(self, warmup: int, steps: int, stop: BaseException) -> None:
        self._warmup, self._steps, self._stop = warmup, steps, stop
        self._detector = StepDetector()
        self._ends: list[Reading] = []
        self._parts = PartTimer()
        self._watch = OptimizerWatch(self._stepped)

    def finish(self) -> dict[str, Any]:
        """Length, CPU time of this process, and parts of each timed step, ns."""
        self._watch.close()
        self._parts.close()
        steps = list(pairwise(self._ends[max(self._warmup - 1, 0) :]))[: self._steps]
        return {
            "steps_ns": [after.elapsed_ns - before.elapsed_ns for before, after in steps],
            "cpu_ns": [after.process_cpu_ns - before.process_cpu_ns for before, after in steps],
            "parts_ns": {
                name: [after.parts[name][0] - before.parts[name][0] for before, after in steps]
                for name in PARTS
                if name in ("data_loading", "optimizer")
            },
            "steps_seen": len(self._ends),
        }

    def _stepped(self, optimizer: Any) -> None:
        if not self._detector.advance(optimizer):
            return
        _wait_for_device()
        self._ends.append(self._parts.read())
        if len(self._ends) >= max(self._warmup, 1) + self._steps:
            raise self._stop


def _wait_for_device() -> None:
    """A step ends with its device work; otherwise steps would not be comparable."""
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
