"""Detects iterations of the program's loop, for as long as no optimizer has stepped.

A step must include the time to fetch its batch, and an iteration begins with that. So an iteration
ends when a DataLoader is asked for the next batch, if a model was called or a backward pass ran
since the previous request. Without a DataLoader it ends when a model is called again, and where
the model is trained by hand (`p -= lr * p.grad`) at the first call after a backward pass. A
backward pass without any module (plain tensors) ends the iteration itself.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from stepscope.record.creations import LoaderWatch
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import is_bare, unwrap
from stepscope.record.patch import undo
from stepscope.record.step_detector import Kind, StepDetector
from stepscope.record.torch_internals import (
    AUTOGRAD,
    ENGINE,
    CompilerPaused,
    hide_from_compiler,
    is_captured,
    wrap,
)

_Batches: Any = dataloader._BaseDataLoaderIter


class DataLoading:
    """The requests for batches, of all DataLoaders."""


class BackwardPass:
    """The backward passes of the process."""


class IterationWatch:
    """Calls `on_iteration(thing, kind)` where something repeats in the loop, until closed."""

    def __init__(
        self,
        detector: StepDetector,  # is informed of what may still repeat
        ranges: ModuleRanges,  # report the outermost module calls, while they are installed
        loaders: LoaderWatch,  # know which DataLoaders are in use
        will_train: Callable[[], bool],  # whether an optimizer has been created
        on_iteration: Callable[[object, Kind], None],  # called between two iterations
        # Called before each outermost call of a model in training mode.
        on_training_call: Callable[[], None] | None = None,
    ) -> None:
        self._detector, self._loaders = detector, loaders
        self._will_train, self._on_iteration = will_train, on_iteration
        self._on_training_call = on_training_call
        self._loading, self._backward = DataLoading(), BackwardPass()
        self._thread = threading.get_ident()
        self._inside = False
        self._worked = False
        self._called_since = False
        self._backward_ended = False
        self.is_open = True
        self._ranges = ranges
        self._ranges.on_outermost = self._on_call
        self._restore: list[Callable[[], None]] = []
        self._watch_calls()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._ranges.on_outermost = None
            undo(self._restore)

    @contextmanager
    def around_others(self) -> Iterator[None]:
        """Wrappers that are set or removed inside lie within those of this watch."""
        undo(self._restore)
        yield
        if self.is_open:
            self._watch_calls()

    def _watch_calls(self) -> None:
        self._restore = [
            *wrap(_Batches, "__next__", functools.partial(self._around, before=self._on_request)),
            *wrap(AUTOGRAD, ENGINE, functools.partial(self._around, after=self._after_backward)),
        ]

    def _around(
        self,
        function: Callable[..., Any],
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Callable[..., Any]:
        """Calls made inside `function` do not count: a model that creates samples, a layer that is
        recomputed."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.is_open or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._notify(before)
            self._inside = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside = False
            self._notify(after)
            return result

        return watched

    def _notify(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            with CompilerPaused():
                callback()

    def _on_request(self) -> None:
        if self._worked:
            self._worked = False
            self._on_iteration(self._loading, Kind.BATCH)

    def _on_call(self, module: Any) -> None:
        if self._inside or threading.get_ident() != self._thread or is_captured():
            return
        model = unwrap(module)
        kind = Kind.BARE_CALL if is_bare(model) else Kind.CALL
        if kind is Kind.CALL and model.training and torch.is_grad_enabled():
            if self._on_training_call:
                self._on_training_call()
            if self._will_train():
                return
            self._detector.expect(self._backward, Kind.BACKWARD)
        self._count_call(model, kind)

    def _count_call(self, model: Any, kind: Kind) -> None:
        if kind is Kind.CALL:
            self._worked = self._called_since = True
            if self._loaders.are_in_use:
                self._detector.expect(self._loading, Kind.BATCH)
            if self._backward_ended:
                self._backward_ended = False
                self._on_iteration(self._backward, Kind.BACKWARD)
        if not self._detector.expect(model, kind) and self.is_open:
            self._on_iteration(model, kind)

    def _after_backward(self) -> None:
        if self._will_train() or is_captured():
            return
        self._worked = True
        if self._called_since:
            self._called_since = False
            self._backward_ended = True
        elif not self._backward_ended:
            self._on_iteration(self._backward, Kind.BACKWARD)


hide_from_compiler(IterationWatch._notify.__code__)
