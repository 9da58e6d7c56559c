"""Tells where the program's loop comes round, for as long as no optimizer has stepped.

A step must hold what it takes to fetch its batch, and a turn begins with that: so a turn ends when
a DataLoader is asked for the next batch, if a model has been called or a backward pass has run
since it was last asked. Where no DataLoader is at work it ends when a model is called again, and
where that is trained by hand (`p -= lr * p.grad`) when it is first called after a backward pass. A
backward pass of no module (tensors alone) ends the turn itself.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from stepscope.capture.cycle import Kind, StepCycle
from stepscope.capture.forest import is_bare
from stepscope.capture.loaders import LoaderWatch
from stepscope.capture.modules import unwrap
from stepscope.capture.ranges import CompilerPaused, ModuleRanges, hide_from_compiler

_Batches: Any = dataloader._BaseDataLoaderIter
_Autograd: Any = torch.autograd
# Through this go `backward` and `grad`; torch before 2.2 has it not.
_ENGINE = "_engine_run_backward" if hasattr(_Autograd, "_engine_run_backward") else "backward"


class DataLoading:
    """The requests for batches, of all DataLoaders."""


class BackwardPass:
    """The backward passes of the process."""


class TurnWatch:
    """Calls `on_turn(thing, kind)` where something comes round in the loop, until closed.

    Args:
        cycle: is told what may come round yet.
        ranges: tell of the outermost module calls, while they are installed.
        loaders: know which DataLoaders are in use.
        will_train: whether an optimizer has been made.
        on_turn: called between two turns.
    """

    def __init__(
        self,
        cycle: StepCycle,
        ranges: ModuleRanges,
        loaders: LoaderWatch,
        will_train: Callable[[], bool],
        on_turn: Callable[[object, Kind], None],
    ) -> None:
        self._cycle, self._loaders = cycle, loaders
        self._will_train, self._on_turn = will_train, on_turn
        self._loading, self._backward = DataLoading(), BackwardPass()
        self._thread = threading.get_ident()
        self._inside = False
        self._worked = False
        self._called_since = False
        self._backward_ended = False
        self.is_open = True
        self._ranges = ranges
        self._ranges.on_outermost = self._called
        self._restore = [
            _replace(_Batches, "__next__", self._around(_Batches.__next__, before=self._asked)),
            _replace(_Autograd, _ENGINE, self._around(_engine(), after=self._ran_backward)),
        ]

    def close(self) -> None:
        """Leave torch as it was."""
        if self.is_open:
            self.is_open = False
            self._ranges.on_outermost = None
            for restore in self._restore:
                restore()

    def _around(
        self,
        function: Callable[..., Any],
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Callable[..., Any]:
        """What is called inside of `function` is no turn: a model that makes samples, a layer that
        is computed again."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.is_open or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._tell(before)
            self._inside = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside = False
            self._tell(after)
            return result

        hide_from_compiler(watched.__code__)
        return functools.wraps(function)(watched)

    def _tell(self, what: Callable[[], None] | None) -> None:
        if what is not None:
            with CompilerPaused():
                what()

    def _asked(self) -> None:
        """A DataLoader is asked for a batch."""
        if self._worked:
            self._worked = False
            self._on_turn(self._loading, Kind.BATCH)

    def _called(self, module: Any) -> None:
        """A module is called that no other one calls."""
        if self._inside or threading.get_ident() != self._thread or _is_captured():
            return
        model = unwrap(module)
        kind = Kind.BARE_CALL if is_bare(model) else Kind.CALL
        if kind is Kind.CALL and model.training and torch.is_grad_enabled():
            if self._will_train():
                return
            self._cycle.expect(self._backward, Kind.BACKWARD)
        self._note_call(model, kind)

    def _note_call(self, model: Any, kind: Kind) -> None:
        if kind is Kind.CALL:
            self._worked = self._called_since = True
            if self._loaders.are_in_use:
                self._cycle.expect(self._loading, Kind.BATCH)
            if self._backward_ended:
                self._backward_ended = False
                self._on_turn(self._backward, Kind.BACKWARD)
        if not self._cycle.expect(model, kind) and self.is_open:
            self._on_turn(model, kind)

    def _ran_backward(self) -> None:
        if self._will_train():
            return
        self._worked = True
        if self._called_since:
            self._called_since = False
            self._backward_ended = True
        elif not self._backward_ended:
            self._on_turn(self._backward, Kind.BACKWARD)


def _engine() -> Callable[..., Any]:
    engine: Callable[..., Any] = getattr(_Autograd, _ENGINE)
    return engine


def _replace(holder: Any, name: str, ours: Any) -> Callable[[], None]:
    """Put `ours` in the place of an attribute; what puts the original back."""
    original = getattr(holder, name)
    setattr(holder, name, ours)

    def restore() -> None:
        if getattr(holder, name) is ours:
            setattr(holder, name, original)

    return restore


def _is_captured() -> bool:
    """Whether calls are being recorded for later, as torch.jit.trace and CUDA graphs do."""
    jit: Any = torch.jit
    cuda: Any = torch.cuda
    capturing = cuda.is_initialized() and cuda.is_current_stream_capturing()
    return bool(jit.is_tracing() or capturing)


hide_from_compiler(TurnWatch._tell.__code__)
