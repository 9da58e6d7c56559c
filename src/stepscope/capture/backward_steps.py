"""Steps of optimizers within a backward pass, from hooks of gradients.

`Tensor.register_post_accumulate_grad_hook` lets an optimizer update each weight as soon as its
gradient is there. A profiler that starts or stops inside of the pass crashes torch, and the pass is
part of the step: such steps are reported once the pass is over.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from stepscope.capture.autograd_engine import AUTOGRAD, ENGINE
from stepscope.capture.module_ranges import hide_from_compiler
from stepscope.capture.patch import replace

_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class BackwardSteps:
    """Calls `on_step(optimizer)` once for each backward pass in which optimizers stepped.

    The optimizer is the same for all passes that share one. Passes are watched from the first such
    step on, so that the first pass is not reported.
    """

    def __init__(self, on_step: Callable[[Any], None]) -> None:
        self._on_step = on_step
        self._stepped: list[Any] = []
        self._reported: weakref.WeakSet[Any] = weakref.WeakSet()
        self._restore: Callable[[], None] | None = None

    def takes(self, optimizer: Any) -> bool:
        """Whether this step of an optimizer runs within a backward pass, and is reported later."""
        if _pass() < 0:
            return False
        if self._restore is None:
            self._watch()
        else:
            self._stepped.append(optimizer)
        return True

    def close(self) -> None:
        """Leave torch as it was."""
        self._on_step = lambda optimizer: None
        if self._restore:
            self._restore()

    def _watch(self) -> None:
        engine = getattr(AUTOGRAD, ENGINE)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._stepped = [] if _pass() < 0 else self._stepped  # an earlier pass may have failed
            result = engine(*args, **kwargs)
            if self._stepped and _pass() < 0:
                self._report()
            return result

        hide_from_compiler(watched.__code__)
        self._restore = replace(AUTOGRAD, ENGINE, functools.wraps(engine)(watched))

    def _report(self) -> None:
        stepped, self._stepped = self._stepped, []
        known = (optimizer for optimizer in stepped if optimizer in self._reported)
        optimizer = next(known, stepped[-1])
        self._reported.add(optimizer)
        self._on_step(optimizer)
