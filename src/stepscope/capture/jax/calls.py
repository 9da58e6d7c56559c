"""Tells when a compiled function has returned, for every call that needed no compiling.

JAX calls one hook after each such call; `jax_debug_nans` is made of it. The hook is no part of its
public interface (jax/_src/api.py, `_post_hook_state`). It costs about a microsecond for each call,
and nothing once it is gone. A call that has to compile first does not come by here, nor does one of
a function with effects (`jax.debug.print`, callbacks), which JAX runs from Python each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src import api

from stepscope.capture.jax import too_old
from stepscope.errors import CaptureError

OnCall = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class CallWatch:
    """Calls `on_call(function, arguments, keywords, outputs)` on the main thread, until closed.

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

    def close(self) -> None:
        """Leave JAX as it was."""
        api.jax_jit.set_post_hook_state(self._of_jax)

    def _returned(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Any
    ) -> None:
        if (hook := self._of_jax.value) is not None:
            hook(function, arguments, keywords, outputs)
        if threading.get_ident() == threading.main_thread().ident:
            self._on_call(function, arguments, keywords, outputs)
