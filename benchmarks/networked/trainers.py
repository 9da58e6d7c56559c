"""Training steps of each kind: alone, and in ways to average gradients over workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from benchmarks.networked.blueconnect import BlueConnect
from benchmarks.networked.dgc import Dgc
from benchmarks.networked.mesh import Mesh
from benchmarks.networked.models import LEARNING_RATE, MOMENTUM, Task
from benchmarks.networked.p3 import P3
from torch.nn.parallel import DistributedDataParallel

RATIO = 0.01
# Four times the paper's slices: in Python, a message costs 0.1 ms of CPU time whatever its size.
SLICE_ELEMENTS = 200_000
FACTORS = (2, 2)


class Trainer(Protocol):
    """Trains a model; `optimizer_ns` is the time of its weight updates so far, if by themselves."""

    optimizer_ns: int

    def step(self) -> None:
        """Make one step."""

    def finish(self) -> None:
        """Complete what the last step left for the next."""


class Alone:
    """Training without communication."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._optimizer = sgd(list(task.model.parameters()))
        self.optimizer_ns = 0

    def step(self) -> None:
        self._task.loss(self._task.model).backward()
        begin = time.perf_counter_ns()
        self._optimizer.step()
        self.optimizer_ns += time.perf_counter_ns() - begin
        self._optimizer.zero_grad()

    def finish(self) -> None:
        pass


class Parallel(Alone):
    """DistributedDataParallel, with its own all-reduces or a communication hook's.

    Args:
        task: what to train.
        hook: averages buckets.
        momentum: of the optimizer.
    """

    def __init__(self, task: Task, hook: BlueConnect | Dgc | None = None, momentum: float = MOMENTUM) -> None:
        super().__init__(task)
        model = DistributedDataParallel(task.model)
        if hook is not None:
            model.register_comm_hook(None, lambda state, bucket: hook.average(bucket))
        self._task = Task(model, task.loss)
        self._optimizer = sgd(list(model.parameters()), momentum)


class ByPriority:
    """P3."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._p3 = P3(task.model, sgd, Mesh(), SLICE_ELEMENTS)
        self.optimizer_ns = 0

    def step(self) -> None:
        self._task.loss(self._task.model).backward()

    def finish(self) -> None:
        self._p3.finish()


def sgd(parameters: Sequence[torch.nn.Parameter], momentum: float = MOMENTUM) -> torch.optim.SGD:
    """The optimizer of all models."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=momentum)


def make_trainer(way: str, task: Task) -> Trainer:
    """A trainer by name: `alone`, `ddp`, `p3`, `dgc` or `blueconnect`.

    DGC has its momentum in the compression, so the optimizer has none.
    """
    if way == "alone":
        return Alone(task)
    if way == "p3":
        return ByPriority(task)
    if way == "dgc":
        return Parallel(task, Dgc(RATIO, MOMENTUM), momentum=0.0)
    if way == "blueconnect":
        return Parallel(task, BlueConnect(FACTORS))
    if way == "ddp":
        return Parallel(task)
    raise ValueError(way)
