"""Times the parts of a step whose calls can be seen without recording operators."""

import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from stepscope.record.patch import Hooks
from stepscope.record.step_times import Reading, page_faults
from stepscope.record.torch_internals import AUTOGRAD, ENGINE, hide_from_compiler, hide_methods, wrap
from stepscope.record.unreplaced import time

_Batches: Any = dataloader._BaseDataLoaderIter

PARTS = ("data_loading", "forward", "evaluation", "loss", "zero_grad", "backward", "optimizer", "rest")
_FORWARD, _EVALUATION, _LOSS, _OPTIMIZER = (
    PARTS.index(part) for part in ("forward", "evaluation", "loss", "optimizer")
)
_REST = len(PARTS) - 1
_OWN = len(PARTS)
_ENDS_LOSS = {*range(_OWN)} - {_FORWARD, _EVALUATION}
OWN_WORK = "recorder"  # what runs inside a step and is no part of it
_MOST_CHANGES = 40_000  # kept and written: about 1 MB

# From these clocks on, of elapsed time and of the CPU time of the thread, a part runs; where a step
# ends also the CPU time and the page faults of the process.
_Change = tuple[int, int, int, tuple[int, int | None] | None]


class PartTimer(Hooks):
    """Adds up the time in each part of a step, until removed.

    Only the thread that made it counts. A part that runs inside another one, such as the backward
    pass in an optimizer's closure, is not time of the outer part; a closure itself is `rest`.
    A model that runs without gradients is `evaluation`. What follows a model that runs with them is
    `loss`, until another part begins. Calls of models are reported by `ModuleRanges`, and steps of
    optimizers, with what torch does around them, by `OptimizerWatch`.

    Where a part begins or ends, the clocks are read and nothing else is done: a timer that works
    inside a step takes the caches from it. Times are added up when they are asked for. Other work
    of the recorder, between `pause` and `resume`, is time of no part.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._elapsed, self._cpu = [0] * (_OWN + 1), [0] * (_OWN + 1)
        self._open: list[int] = [_REST]
        self._changes: list[_Change] = []
        self._readings: list[Reading] = []
        self._noted: list[tuple[int, int]] = []  # moments and parts
        self._unix_ns = time.time_ns() - time.perf_counter_ns()
        self._since: _Change = (time.perf_counter_ns(), time.thread_time_ns(), _REST, None)
        self._notes_changes = self._tells_parts = True
        self._begun_by_hook: set[int] = set()
        self._restore = [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins).remove,
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ended).remove,
        ]
        for holder, name, part in (
            (_Batches, "__next__", "data_loading"),
            (AUTOGRAD, ENGINE, "backward"),
            (torch_optimizer.Optimizer, "zero_grad", "zero_grad"),
        ):
            self._restore += wrap(holder, name, partial(self._timed, part=PARTS.index(part)))

    def mark(self) -> None:
        """A step ends and the next begins; `readings` has the clocks of now."""
        is_paused = self._open[-1] == _OWN
        self._open[:] = [_REST, _OWN] if is_paused else [_REST]  # an optimizer may have failed
        self._begun_by_hook.clear()
        clocks = time.perf_counter_ns(), time.thread_time_ns()
        self._changes.append((*clocks, self._open[-1], (time.process_time_ns(), page_faults())))

    def readings(self) -> list[Reading]:
        self._add_up()
        readings, self._readings = self._readings, []
        return readings

    def read(self) -> Reading:
        """The clocks now; called between two steps."""
        self.mark()
        return self.readings()[-1]

    def stop_noting_changes(self) -> None:
        self._add_up()
        self._notes_changes = False

    def tell_parts(self, tells: bool) -> None:
        """Whether parts are timed from now on, between two steps; else all time is `rest`."""
        self._tells_parts = tells

    def pause(self) -> None:
        """Other work of the recorder begins inside a step."""
        if threading.get_ident() == self._thread:
            self._begin(_OWN)

    def resume(self) -> None:
        if threading.get_ident() == self._thread and self._open[-1] == _OWN:
            self.part_ends()

    def changes(self) -> dict[str, Any] | None:
        """When each part began until now, and which: the order of events, not only sums.

        Times of changes count from the first; parts are positions in `parts`. None if there were too many.
        """
        self._add_up()
        if not 0 < len(self._noted) <= _MOST_CHANGES:
            return None
        first = self._noted[0][0]
        return {
            "parts": [*PARTS, OWN_WORK],
            "since_unix_ns": first + self._unix_ns,
            "after_ns": [moment - first for moment, _ in self._noted],
            "part": [part for _, part in self._noted],
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

    def work_follows(self) -> None:
        """The optimizer that has begun last returns, and the recorder works until `resume`."""
        self._open[-1] = _OWN
        self._change()

    def _begin(self, part: int) -> None:
        if self._open[-1] == _LOSS and part in _ENDS_LOSS:
            self._open[-1] = _REST
        self._open.append(part)
        self._change()

    def part_ends(self) -> None:
        """The part that has begun last ends."""
        if len(self._open) > 1 and self._open.pop() == _FORWARD:
            self._open[-1] = _LOSS
        self._change()

    def _change(self) -> None:
        """From now on the innermost open part runs."""
        self._changes.append((time.perf_counter_ns(), time.thread_time_ns(), self._open[-1], None))
        if len(self._changes) >= _MOST_CHANGES:
            self._add_up()

    def _add_up(self) -> None:
        """Give the time between two changes to the part that ran."""
        changes, self._changes = self._changes, []
        for change in changes:
            elapsed_ns, cpu_ns, part, of_process = change
            ended = self._since[2]
            self._elapsed[ended] += elapsed_ns - self._since[0]
            self._cpu[ended] += cpu_ns - self._since[1]
            self._since = change
            if of_process is not None:
                self._readings.append(self._reading(elapsed_ns, cpu_ns, *of_process))
            elif self._notes_changes and len(self._noted) <= _MOST_CHANGES:
                self._noted.append((elapsed_ns, part))

    def _reading(self, elapsed_ns: int, cpu_ns: int, process_cpu_ns: int, faults: int | None) -> Reading:
        *times, (own_ns, own_cpu_ns) = zip(self._elapsed, self._cpu, strict=True)
        parts = dict(zip(PARTS, times, strict=True))
        clocks = elapsed_ns - own_ns, cpu_ns - own_cpu_ns, process_cpu_ns - own_cpu_ns
        return Reading(*clocks, parts, faults)

    def _timed(self, function: Callable[..., Any], part: int) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._times_this():
                return function(*args, **kwargs)
            self._begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.part_ends()

        hide_from_compiler(timed.__code__)
        return functools.wraps(function)(timed)

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self._times_this():
            return None
        if self._open[-1] != _OPTIMIZER:  # else its watch has reported it
            self._begin(_OPTIMIZER)
            self._begun_by_hook.add(id(optimizer))
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._timed(kwargs["closure"], _REST)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._timed(args[1], _REST), *args[2:]), kwargs
        return None

    def _optimizer_ended(self, optimizer: Any, args: object, kwargs: object) -> None:
        if id(optimizer) in self._begun_by_hook and threading.get_ident() == self._thread:
            self._begun_by_hook.discard(id(optimizer))
            if self._open[-1] not in (_LOSS, _REST):
                self.part_ends()

    def _times_this(self) -> bool:
        return self._tells_parts and threading.get_ident() == self._thread


hide_methods(PartTimer)
