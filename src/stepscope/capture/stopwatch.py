"""Times training steps without recording them: what a step takes when nobody looks."""

from __future__ import annotations

import functools
import time
from itertools import pairwise
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from stepscope.capture.cycle import StepCycle
from stepscope.capture.optimizers import OptimizerWatch

_Batches: Any = dataloader._BaseDataLoaderIter


class Stopwatch:
    """Takes the time from the end of each step to the end of the next, and then ends the program.

    Also what of it goes by while batches are loaded, and in optimizers.

    Args:
        warmup: steps to let pass first.
        steps: steps to time.
        stop: what to raise once they are timed.
    """

    def __init__(self, warmup: int, steps: int, stop: BaseException) -> None:
        self._warmup, self._steps, self._stop = warmup, steps, stop
        self._cycle = StepCycle()
        self._loading_ns = self._optimizer_ns = self._begun_ns = 0
        self._ends: list[tuple[int, int, int, int]] = []
        self._time_loading()
        torch_optimizer.register_optimizer_step_pre_hook(self._begin)
        self._watch = OptimizerWatch(self._stepped)

    def finish(self) -> dict[str, Any]:
        """Of each timed step its length, this process's CPU time, and its parts, ns."""
        self._watch.close()
        ends = self._ends[max(self._warmup - 1, 0) :]
        wall, cpu, loading, optimizer = (
            [after[n] - before[n] for before, after in pairwise(ends)][: self._steps]
            for n in range(4)
        )
        parts = {"data_loading": loading, "optimizer": optimizer}
        return {"steps_ns": wall, "cpu_ns": cpu, "parts_ns": parts, "steps_seen": len(self._ends)}

    def _time_loading(self) -> None:
        load = _Batches.__next__

        @functools.wraps(load)
        def timed(batches: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return load(batches)
            finally:
                self._loading_ns += time.perf_counter_ns() - begin

        _Batches.__next__ = timed

    def _begin(self, optimizer: Any, args: object, kwargs: object) -> None:
        self._begun_ns = time.perf_counter_ns()

    def _stepped(self, optimizer: Any) -> None:
        self._optimizer_ns += time.perf_counter_ns() - self._begun_ns
        if not self._cycle.ends_step(optimizer):
            return
        _wait_for_device()
        moments = time.perf_counter_ns(), time.process_time_ns()
        self._ends.append((*moments, self._loading_ns, self._optimizer_ns))
        if len(self._ends) >= max(self._warmup, 1) + self._steps:
            raise self._stop


def _wait_for_device() -> None:
    """A step has ended when its device work has; without that, steps would not be comparable."""
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
