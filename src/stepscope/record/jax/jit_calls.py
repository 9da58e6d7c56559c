"""Reports each return of a function of the program that JAX runs.

JAX calls one hook after each call that needed no compilation; `jax_debug_nans` uses it. The hook is not part
of JAX's public interface (jax/_src/api.py, `_post_hook_state`); where it is missing, nothing is recorded. It
costs a few microseconds per call, and nothing after removal. Functions with effects (`jax.debug.print`,
callbacks) bypass the hook, and so do calls that compile: JAX runs them from Python, where they are wrapped,
if that is possible; else they are not seen. The first call of a function is not reported. Gradients outside
of compiled functions are reported as calls too (`watch_gradients`).
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax._src import api, core, source_info_util, traceback_util
from jax._src.interpreters import pxla

from stepscope.errors import CaptureError
from stepscope.record.jax.compilation_counter import OF_JAX, called_from_python
from stepscope.record.patch import Hooks, ignoring, replace, undo

_PMAP = "jax._src.pmap"
_PART_OF_GRADIENT = "call_impl_cache_miss"  # of a jitted function that is differentiated


class JitCall(NamedTuple):
    """A call of a compiled function that has returned."""

    name: str  # of the function
    inputs: Any  # its arguments, as a tree
    outputs: Any  # what it returned
    memory: Callable[[], Any]  # gives XLA's buffer assignment of its program, per device


OnCall = Callable[[JitCall], None]


class JitCallWatch(Hooks):
    """Calls `on_call(call)` on the main thread, until removed.

    The program's own hook is still called. Raises CaptureError if this version of JAX has no such hook.
    """

    def __init__(self, on_call: OnCall) -> None:
        self._on_call = on_call
        self._called: set[str] = set()  # names of functions that have run
        self._hook_of_program, remove_hook = _install_hook(self._returned)
        self._restore = [remove_hook, watch_gradients(self._gradient_returned)]
        if (programs := getattr(pxla, "ExecuteReplicated", None)) is not None:
            self._restore.append(replace(programs, "__call__", self._around(programs.__call__)))

    def _gradient_returned(self, name: str, inputs: Any, outputs: Any) -> None:
        self._notify(JitCall(name, inputs, outputs, _no_program))

    def _returned(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Any
    ) -> None:
        if (hook := self._hook_of_program()) is not None:
            hook(function, arguments, keywords, outputs)
        if name := name_of(function):
            self._called.add(name)

            def memory() -> Any:  # lowered and compiled already: nothing is done again
                return function.lower(*arguments, **keywords).compile().memory_analysis()

            self._notify(JitCall(name, (arguments, keywords), outputs, memory))

    def _around(self, execute: Any) -> Any:
        @functools.wraps(execute)
        def watched(program: Any, *arguments: Any) -> Any:
            outputs = execute(program, *arguments)
            if name := self._run_from_python():
                self._notify(
                    JitCall(
                        name, arguments, outputs, lambda: program.xla_executable.get_compiled_memory_stats()
                    )
                )
            return outputs

        return watched

    def _run_from_python(self) -> str:
        """The name of the function whose call is to be reported; empty if it is none."""
        called = called_from_python(sys._getframe(2))
        name: str = getattr(called, "__qualname__", "").rpartition("<locals>.")[2]
        is_first = name not in self._called
        self._called.add(name)
        return "" if is_first else name

    def _notify(self, call: JitCall) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._on_call(call)


_hooks: list[tuple[Callable[..., None], Any]] = []  # those of open watches, with their states


def _install_hook(hook: Callable[..., None]) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Set JAX's hook after each call.

    Returns functions that give the hook before it, the program's if it has one, and that remove ours.
    """
    try:
        state: Any = api._post_hook_state
        ours = type(state)("stepscope", None, include_in_jit_key=False)
        ours.set_global(hook)
        api.jax_jit.set_post_hook_state(ours)
        before = _hooks[-1] if _hooks else None
        _hooks.append((hook, ours))

        def remove() -> None:
            if (hook, ours) in _hooks:
                _hooks.remove((hook, ours))
                api.jax_jit.set_post_hook_state(_hooks[-1][1] if _hooks else state)

        return lambda: before[0] if before else state.value, remove
    except (AttributeError, TypeError):
        raise CaptureError("it has no hook for calls") from None


def _no_program() -> Any:
    raise ValueError("an operation outside of jax.jit has no program of its own")


def name_of(function: Any) -> str | None:
    """The name of a function of the program; None for JAX's own functions.

    What `jit(f).lower(…).compile()` returns has no name. Nor have the parts of a gradient that JAX
    computes one by one, which are no calls of the program.
    """
    if not vars(function):
        made_by = getattr(getattr(function, "_cache_miss", None), "__name__", "")
        return None if made_by == _PART_OF_GRADIENT else "compiled"
    module = getattr(function, "__module__", None)
    if module == _PMAP:
        return _name_under_pmap(function)
    if not module or module.partition(".")[0] in OF_JAX:
        return None
    return function.__qualname__.rpartition("<locals>.")[2]


def _name_under_pmap(function: Any) -> str:
    """The name of the function that a function of JAX runs on each device; "pmap" if unknown.

    JAX compiles a function of its own that has the program's in its closure (jax/_src/pmap.py).
    """
    with ignoring(AttributeError, TypeError, ValueError):
        compiled = inspect.unwrap(function)
        mapped = compiled.__closure__[compiled.__code__.co_freevars.index("fun")].cell_contents.f
        return str(mapped.__qualname__).rpartition("<locals>.")[2]
    return "pmap"


MARK = "stepscope.gradient"
_TRANSFORMS = ("grad", "value_and_grad")
_is_eager: Callable[[], bool] = getattr(core, "trace_state_clean", lambda: False)
OnGradient = Callable[[str, Any, Any], None]


def watch_gradients(on_gradient: OnGradient) -> Callable[[], None]:
    """Report each gradient that is computed outside of compiled functions.

    A training loop without `jit` calls no compiled function that repeats once per step: JAX runs
    its operations one by one. But each step asks for a gradient. A call while a function is traced
    is part of that function, and not reported.

    Functions made by `jax.grad` before are not seen, and those made meanwhile stay as they are after it is
    undone, but report nothing. `on_gradient` gets the name of the call, `grad(loss)`, its arguments and its
    results, within a range that the profiler records. Returns a function that undoes it.
    """
    for excluded in (source_info_util, traceback_util):  # so lines and tracebacks stay the user's
        if register := getattr(excluded, "register_exclusion", None):
            register(__file__)
    listeners = [on_gradient]
    restore = [replace(jax, name, _watched(getattr(jax, name), name, listeners)) for name in _TRANSFORMS]

    def stop() -> None:
        listeners.clear()
        undo(restore)

    return stop


class _GradientPasses:
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
        backward, self._backward = self._backward, None
        if backward:
            backward.__exit__(None, None, None)


def _watched(transform: Callable[..., Any], kind: str, listeners: list[OnGradient]) -> Any:
    @functools.wraps(transform)
    def watched(fun: Callable[..., Any], *options: Any, **keywords: Any) -> Any:
        passes = _GradientPasses()
        gradient = transform(passes.forward_of(fun), *options, **keywords)
        return _reported(gradient, f"{kind}({getattr(fun, '__name__', 'function')})", listeners, passes)

    return watched


def _reported(
    gradient: Callable[..., Any], name: str, listeners: list[OnGradient], passes: _GradientPasses
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
