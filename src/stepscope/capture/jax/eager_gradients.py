"""Reports calls of `jax.grad` and `jax.value_and_grad` outside of `jax.jit`.

A training loop without `jit` has no call of a compiled function that repeats once per step: JAX
runs its operations one by one. But each step asks for a gradient. A call while a function is traced
is part of that function, and not reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import core, source_info_util, traceback_util

from stepscope.capture.patch import replace

MARK = "stepscope.gradient"
_TRANSFORMS = ("grad", "value_and_grad")
_is_eager: Callable[[], bool] = getattr(core, "trace_state_clean", lambda: False)
OnGradient = Callable[[str, Any, Any], None]


def watch_gradients(on_gradient: OnGradient) -> Callable[[], None]:
    """Report each gradient that is computed outside of compiled functions.

    Functions made by `jax.grad` before are not seen, and those made meanwhile stay as they are
    after it is undone, but report nothing.

    Args:
        on_gradient: gets the name of the call, `grad(loss)`, its arguments and its results, within
            a range that the profiler records.

    Returns:
        A function that undoes it.
    """
    for excluded in (source_info_util, traceback_util):  # so lines and tracebacks stay the user's
        if register := getattr(excluded, "register_exclusion", None):
            register(__file__)
    listeners = [on_gradient]
    restore = [
        replace(jax, name, _watched(getattr(jax, name), name, listeners)) for name in _TRANSFORMS
    ]

    def undo() -> None:
        listeners.clear()
        for each in restore:
            each()

    return undo


class _Passes:
    """Ranges around the two passes of each gradient: the function itself, and the rest."""

    def __init__(self) -> None:
        self.depth = 0
        self._backward: Any = None

    def forward_of(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The function with ranges, while a gradient of it is computed one by one."""

        @functools.wraps(fun)
        def forward(*arguments: Any, **keywords: Any) -> Any:
            if not self.depth or self._backward:
                return fun(*arguments, **keywords)
            with jax.profiler.TraceAnnotation("forward"):
                result = fun(*arguments, **keywords)
            self._backward = jax.profiler.TraceAnnotation("backward")
            self._backward.__enter__()
            return result

        return forward

    def end_backward(self) -> None:
        """The gradient is known."""
        backward, self._backward = self._backward, None
        if backward:
            backward.__exit__(None, None, None)


def _watched(transform: Callable[..., Any], kind: str, listeners: list[OnGradient]) -> Any:
    @functools.wraps(transform)
    def watched(fun: Callable[..., Any], *options: Any, **keywords: Any) -> Any:
        passes = _Passes()
        gradient = transform(passes.forward_of(fun), *options, **keywords)
        name = f"{kind}({getattr(fun, '__name__', 'function')})"
        return _reported(gradient, name, listeners, passes)

    return watched


def _reported(
    gradient: Callable[..., Any], name: str, listeners: list[OnGradient], passes: _Passes
) -> Callable[..., Any]:
    @functools.wraps(gradient)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not listeners or passes.depth or not _is_eager():
            return gradient(*arguments, **keywords)
        with jax.profiler.TraceAnnotation(MARK):
            passes.depth += 1
            try:
                result = gradient(*arguments, **keywords)
            finally:
                passes.depth -= 1
                passes.end_backward()
            for listener in list(listeners):
                listener(name, (arguments, keywords), result)
        return result

    return call
