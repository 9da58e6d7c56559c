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

from stepscope.capture.autograd_engine import AUTOGRAD, ENGINE
from stepscope.capture.clock_readings import Reading
from stepscope.capture.module_ranges import hide_from_compiler
from stepscope.capture.patch import replace

_Batches: Any = dataloader._BaseDataLoaderIter

PARTS = (
    "data_loading", "forward", "evaluation", "loss", "zero_grad", "backward", "optimizer", "rest",
)  # fmt: skip
_FORWARD, _EVALUATION, _LOSS, _OPTIMIZER = (
    PARTS.index(part) for part in ("forward", "evaluation", "loss", "optimizer")
)
_REST = len(PARTS) - 1
_OWN = len(PARTS)
OWN_WORK = "recorder"  # what runs inside a step and is no part of it
_MOST_CHANGES = 40_000


class PartTimer:
    """Adds up the time in each part of a step, until closed.

    Only the thread that made it counts. A part that runs inside another one, such as the backward
    pass in an optimizer's closure, is not time of the outer part; a closure itself is `rest`.
    A model that runs without gradients is `evaluation`. What follows a model that runs with them is
    `loss`, until another part begins. Calls of models are reported by `ModuleRanges`, and steps of
    optimizers, with what torch does around them, by `OptimizerWatch`.

    A part begins after the timer's own work and ends before it. That work is time of no part, and
    neither is other work of the recorder, between `pause` and `resume`.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._elapsed, self._cpu = [0] * (_OWN + 1), [0] * (_OWN + 1)
        self._open: list[int] = [_REST]
        self._changes: list[tuple[int, int]] = []
        self._unix_ns = time.time_ns() - time.perf_counter_ns()
        self._since = _clocks()
        self._notes_changes = self._tells_parts = True
        self._restore = [
            replace(holder, name, self._timed(getattr(holder, name), PARTS.index(part)))
            for holder, name, part in (
                (_Batches, "__next__", "data_loading"),
                (AUTOGRAD, ENGINE, "backward"),
                (torch_optimizer.Optimizer, "zero_grad", "zero_grad"),
            )
        ]
        self._hooks = [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ended),
        ]

    def read(self) -> Reading:
        """The clocks now; called between two steps."""
        self._count(_clocks())
        is_paused = self._open[-1] == _OWN
        self._open[:] = [_REST, _OWN] if is_paused else [_REST]  # an optimizer may have failed
        *times, (own_ns, own_cpu_ns) = zip(self._elapsed, self._cpu, strict=True)
        parts = dict(zip(PARTS, times, strict=True))
        elapsed_ns, cpu_ns = self._since[0] - own_ns, self._since[1] - own_cpu_ns
        return Reading(elapsed_ns, cpu_ns, time.process_time_ns() - own_cpu_ns, parts)

    def stop_noting_changes(self) -> None:
        """The recording has ended."""
        self._notes_changes = False

    def tell_parts(self, tells: bool) -> None:
        """Whether parts are timed from now on, between two steps; else all time is `rest`."""
        self._tells_parts = tells

    def pause(self) -> None:
        """Other work of the recorder begins inside a step."""
        if threading.get_ident() == self._thread:
            self._count(_clocks())
            self._open.append(_OWN)
            self._note_change(self._since[0], _OWN)

    def resume(self) -> None:
        """That work is done."""
        if threading.get_ident() == self._thread and self._open[-1] == _OWN:
            self._count(_clocks())
            self._open.pop()
            self._note_change(self._since[0], self._open[-1])

    def changes(self) -> dict[str, Any] | None:
        """When each part began until now, and which: the order of events, not only sums.

        Returns:
            `parts`, names; `since_unix_ns`, the first change; and of each change `after_ns`, the
            time since the first, and `part`, its position in `parts`. None if there were too many.
        """
        if not 0 < len(self._changes) <= _MOST_CHANGES:
            return None
        first = self._changes[0][0]
        return {
            "parts": [*PARTS, OWN_WORK],
            "since_unix_ns": first + self._unix_ns,
            "after_ns": [moment - first for moment, _ in self._changes],
            "part": [part for _, part in self._changes],
        }

    def model_begins(self) -> bool:
        """A model is called that no other module calls; whether its time is a part of its own."""
        if not self._times_this() or self._open[-1] not in (_LOSS, _REST):
            return False
        self._begin(_FORWARD if torch.is_grad_enabled() else _EVALUATION)
        return True

    def optimizer_begins(self) -> bool:
        """An optimizer is asked for a step; whether its time is a part of its own."""
        if not self._times_this():
            return False
        self._begin(_OPTIMIZER)
        return True

    def part_ends(self) -> None:
        """The model or optimizer that has begun last returns."""
        self._end()

    def close(self) -> None:
        """Leave torch as it was."""
        while self._restore:
            self._restore.pop()()
        while self._hooks:
            self._hooks.pop().remove()

    def _count(self, now: tuple[int, int], part: int | None = None) -> None:
        """Add the time since the last change to a part, by default the one that runs."""
        part = self._open[-1] if part is None else part
        self._elapsed[part] += now[0] - self._since[0]
        self._cpu[part] += now[1] - self._since[1]
        self._since = now

    def _begin(self, part: int) -> None:
        self._count(_clocks())
        if self._open[-1] == _LOSS and part not in (_FORWARD, _EVALUATION):
            self._open[-1] = _REST
        self._open.append(part)
        self._own_work_ends()

    def _end(self) -> None:
        self._count(_clocks())
        if len(self._open) > 1 and self._open.pop() == _FORWARD:
            self._open[-1] = _LOSS
        self._own_work_ends()

    def _own_work_ends(self) -> None:
        """The timer has worked since the last change; what is open now begins."""
        begun = self._since[0]
        self._count(_clocks(), _OWN)
        if self._since[0] > begun:
            self._note_change(begun, _OWN)
        self._note_change(self._since[0], self._open[-1])

    def _note_change(self, moment: int, part: int) -> None:
        if self._notes_changes and len(self._changes) <= _MOST_CHANGES:
            self._changes.append((moment, part))

    def _timed(self, function: Callable[..., Any], part: int) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._times_this():
                return function(*args, **kwargs)
            self._begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        hide_from_compiler(timed.__code__)
        return functools.wraps(function)(timed)

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self._times_this():
            return None
        self._begin(_OPTIMIZER)
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._timed(kwargs["closure"], _REST)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._timed(args[1], _REST), *args[2:]), kwargs
        return None

    def _optimizer_ended(self, optimizer: Any, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling() or not self._times_this():
            return
        if self._open[-1] not in (_LOSS, _REST):
            self._end()

    def _times_this(self) -> bool:
        """Whether a part that begins here is timed."""
        return self._tells_parts and threading.get_ident() == self._thread


def _clocks() -> tuple[int, int]:
    """Elapsed time and CPU time of this thread, ns."""
    return time.perf_counter_ns(), time.thread_time_ns()


for _function in (
    _clocks,
    PartTimer.pause,
    PartTimer.resume,
    PartTimer._own_work_ends,
    PartTimer.model_begins,
    PartTimer.optimizer_begins,
    PartTimer.part_ends,
    PartTimer._begin,
    PartTimer._end,
    PartTimer._count,
    PartTimer._times_this,
    PartTimer._note_change,
):
    hide_from_compiler(_function.__code__)
