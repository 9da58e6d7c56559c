"""Times the parts of a step whose calls can be seen without recording operators."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from stepscope.capture.clock_readings import Reading
from stepscope.capture.module_ranges import hide_from_compiler
from stepscope.capture.patch import replace

_Batches: Any = dataloader._BaseDataLoaderIter
_Autograd: Any = torch.autograd
# torch before 2.2 calls the engine itself.
_ENGINE = "_engine_run_backward" if hasattr(_Autograd, "_engine_run_backward") else "backward"

PARTS = ("data_loading", "backward", "optimizer", "rest")
_REST = len(PARTS) - 1


class PartTimer:
    """Adds up the time in data loading, backward passes, optimizers and the rest, until closed.

    Only the thread that made it counts. A part that runs inside another one, such as the backward
    pass in an optimizer's closure, is not time of the outer part; a closure itself is `rest`.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._elapsed, self._cpu = [0] * len(PARTS), [0] * len(PARTS)
        self._open: list[int] = [_REST]
        self._since = (time.perf_counter_ns(), time.thread_time_ns())
        self._restore = [
            replace(_Batches, "__next__", self._timed(_Batches.__next__, 0)),
            replace(_Autograd, _ENGINE, self._timed(getattr(_Autograd, _ENGINE), 1)),
        ]
        self._hooks = [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ended),
        ]

    def read(self) -> Reading:
        """The clocks now; called between two steps."""
        self._count()
        del self._open[1:]  # an optimizer that failed has not ended
        times = zip(self._elapsed, self._cpu, strict=True)
        parts = dict(zip(PARTS, times, strict=True))
        return Reading(*self._since, time.process_time_ns(), parts)

    def close(self) -> None:
        """Leave torch as it was."""
        while self._restore:
            self._restore.pop()()
        while self._hooks:
            self._hooks.pop().remove()

    def _count(self) -> None:
        """Add the time since the last change to the part that runs."""
        now, part = (time.perf_counter_ns(), time.thread_time_ns()), self._open[-1]
        self._elapsed[part] += now[0] - self._since[0]
        self._cpu[part] += now[1] - self._since[1]
        self._since = now

    def _begin(self, part: int) -> None:
        self._count()
        self._open.append(part)

    def _end(self) -> None:
        self._count()
        if len(self._open) > 1:
            self._open.pop()

    def _timed(self, function: Callable[..., Any], part: int) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        hide_from_compiler(timed.__code__)
        return functools.wraps(function)(timed)

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        self._begin(PARTS.index("optimizer"))
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._timed(kwargs["closure"], _REST)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._timed(args[1], _REST), *args[2:]), kwargs
        return None

    def _optimizer_ended(self, optimizer: Any, args: object, kwargs: object) -> None:
        if threading.get_ident() == self._thread and self._open[-1] != _REST:
            self._end()
