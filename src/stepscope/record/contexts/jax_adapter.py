"""Reports what a JAX program does to the collector: calls, compilations, waits, transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stepscope.record.contexts.jax_compilations import JitCompilations, JitFunctions
from stepscope.record.jax.program_ranges import watch_waits
from stepscope.record.patch import undo


class JaxAdapter:
    """Reports calls of compiled functions, compilations, waits and transfers."""

    def __init__(self, extension: Any, windows: bool = False) -> None:
        self._extension = extension
        self._functions = JitFunctions(extension.forget_call)
        self._compilations = JitCompilations(extension)
        self._restore: list[Callable[[], None]] = []
        self._wants_windows = windows
        self._windows: Any = None

    def attach(self) -> None:
        self._compilations.follow()
        self._restore, missing = watch_waits(self._extension)
        problem = self._watch_calls()
        self._note("calls of compiled functions are not recorded", problem)
        if self._wants_windows and not problem:
            self._note("compiled operations are not recorded", self._open_windows())
        self._note("reads of arrays as buffers are not recorded", self._watch_buffers())
        for what in missing:
            self._note(f"{what} is not recorded", "this version has no such function")

    def detach(self) -> None:
        if self._windows:
            self._windows.detach()
        self._extension.leave_jax()
        self._compilations.close()
        undo(self._restore)

    def name_contexts(self) -> None:
        """Contexts have their names from the start."""

    def _note(self, what: str, problem: str) -> None:
        if problem:
            self._extension.note(f"{what}: JAX {jax.__version__}: {problem}")

    def _watch_calls(self) -> str:
        kind = type(jax.jit(lambda x: x))
        if kind.__module__.partition(".")[0] != "jaxlib":
            return f"jax.jit makes a {kind.__module__}.{kind.__name__}"
        describe, returned = self._functions.describe, self._compilations.call_returned
        return str(self._extension.watch_calls(kind, describe, returned))

    def _open_windows(self) -> str:
        try:
            from stepscope.record.contexts.jax_windows import ProfilerWindows

            self._windows = ProfilerWindows(self._extension)
        except (ImportError, AttributeError) as error:
            return str(error)
        self._windows.attach()
        return ""

    def _watch_buffers(self) -> str:
        try:
            from jax._src.array import ArrayImpl
        except ImportError as error:
            return str(error)
        return str(self._extension.watch_buffers(ArrayImpl, "wait: np.asarray(x)"))
