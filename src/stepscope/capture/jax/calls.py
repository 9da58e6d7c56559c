"""Tells when a compiled function of the program has returned.

JAX calls one hook after each call that needed no compiling; `jax_debug_nans` is made of it. The
hook is no part of its public interface (jax/_src/api.py, `_post_hook_state`). It costs some
microseconds for each call, and nothing once it is gone. Functions with effects (`jax.debug.print`,
callbacks) do not come by there: those JAX runs from Python each time, where we see them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src import api
from jax._src.interpreters.pxla import ExecuteReplicated

from stepscope.capture.jax import too_old
from stepscope.errors import CaptureError

OnCall = Callable[[str, Any, Any], None]
_OF_JAX = ("jax", "jaxlib")


class CallWatch:
    """Calls `on_call(name, inputs, outputs)` on the main thread, until closed.

    JAX is made to look for its hook in a place of ours, and looks in its own again afterwards: what
    the program sets there meanwhile is called as ever.
    """

    def __init__(self, on_call: OnCall) -> None:
        self._on_call = on_call
        try:
            self._of_jax = api._post_hook_state
            ours = type(self._of_jax)("stepscope", None, include_in_jit_key=False)
            ours.set_global(self._returned)
            api.jax_jit.set_post_hook_state(ours)
        except (AttributeError, TypeError):
            raise CaptureError(too_old(jax.__version__)) from None
        self._execute = ExecuteReplicated.__call__
        self._watched = self._around(self._execute)
        ExecuteReplicated.__call__ = self._watched

    def close(self) -> None:
        """Leave JAX as it was."""
        api.jax_jit.set_post_hook_state(self._of_jax)
        if ExecuteReplicated.__call__ is self._watched:
            ExecuteReplicated.__call__ = self._execute

    def _returned(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Any
    ) -> None:
        if (hook := self._of_jax.value) is not None:
            hook(function, arguments, keywords, outputs)
        if name := name_of(function):
            self._tell(name, (arguments, keywords), outputs)

    def _around(self, execute: Any) -> Any:
        """Tells of the programs that have effects."""

        @functools.wraps(execute)
        def watched(program: Any, *arguments: Any) -> Any:
            outputs = execute(program, *arguments)
            if program.has_host_callbacks or program.has_unordered_effects:
                name = program.name.removeprefix("jit(").removesuffix(")")
                self._tell(name, arguments, outputs)
            return outputs

        return watched

    def _tell(self, name: str, inputs: Any, outputs: Any) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._on_call(name, inputs, outputs)


def name_of(function: Any) -> str | None:
    """The name of a function of the program's own; None where it is one of JAX's."""
    if not vars(function):
        return "compiled"  # what `jit(f).lower(…).compile()` returns has no name
    module = getattr(function, "__module__", None)
    if not module or module.partition(".")[0] in _OF_JAX:
        return None
    name: str = function.__qualname__.rpartition("<locals>.")[2]
    return name
