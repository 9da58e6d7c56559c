"""What torch.compile tells: when it compiles, and which source line a kernel of its own comes from.

Nothing of the compiler is imported here; each part is set up when the program imports it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from stepscope.capture.imports import AfterImport

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
Locate = Callable[[str, str, int], object]


class CompilerWatch:
    """Makes compiled kernels show, with their source lines.

    Args:
        locate: called with a kernel's name, and the file and line it comes from.
        on_compile: called with "begin" or "end" and the compilation's id.
    """

    def __init__(self, locate: Locate, on_compile: Callable[[str, str], object]) -> None:
        self._locate = locate
        self._on_compile = on_compile
        self._undo: list[Callable[[], object]] = []
        self._watches = [
            AfterImport("torch._inductor.config", self._show_kernels),
            AfterImport("torch._inductor.debug", self._follow_kernels),
            AfterImport("torch._dynamo.callback", self._follow_compilations),
        ]

    def install(self) -> None:
        """From now on what is compiled can be told apart; what was compiled before cannot."""
        for watch in self._watches:
            watch.install()

    def remove(self) -> None:
        """Leave the compiler as it was."""
        for watch in self._watches:
            watch.remove()
        while self._undo:
            self._undo.pop()()

    def _show_kernels(self) -> None:
        config: Any = sys.modules["torch._inductor.config"]
        for section, name, value in (
            (config.cpp, "enable_kernel_profile", True),
            (config.trace, "provenance_tracking_level", 1),
        ):
            before = getattr(section, name, None)
            if before is not None and not before:
                setattr(section, name, value)
                self._undo.append(functools.partial(setattr, section, name, before))

    def _follow_kernels(self) -> None:
        debug: Any = sys.modules["torch._inductor.debug"]
        trace = getattr(debug, "set_kernel_post_grad_provenance_tracing", None)
        if trace is None:
            return

        @functools.wraps(trace)
        def traced(schedule: Any, kernel: str, *args: Any, **kwargs: Any) -> Any:
            handle = trace(schedule, kernel, *args, **kwargs)
            stacks = debug._inductor_kernel_stack_trace.get(f"{kernel}:{handle}", [])
            for file, line in map(_innermost, stacks[:1]):
                self._locate(_shown_name(kernel), file, line)
            return handle

        debug.set_kernel_post_grad_provenance_tracing = traced
        self._undo.append(
            lambda: setattr(debug, "set_kernel_post_grad_provenance_tracing", trace)
        )  # fmt: skip

    def _follow_compilations(self) -> None:
        handler: Any = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
        if handler is None:
            return

        def begin(what: Any = None) -> None:
            self._on_compile("begin", str(getattr(what, "compile_id", "")))

        def end(what: Any = None) -> None:
            self._on_compile("end", str(getattr(what, "compile_id", "")))

        handler.register_start_callback(begin)
        handler.register_end_callback(end)
        self._undo.append(lambda: handler.remove_start_callback(begin))
        self._undo.append(lambda: handler.remove_end_callback(end))


def _innermost(stack: str) -> tuple[str, int]:
    places = _PLACE.findall(stack)
    return (places[-1][0], int(places[-1][1])) if places else ("", 0)


def _shown_name(kernel: str) -> str:
    """As the compiled code announces it when it runs: with the number of its graph."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    number = getattr(getattr(virtualized, "V", None), "graph", None)
    number = getattr(number, "graph_id", None)
    is_cpp = kernel.startswith("cpp_") and number is not None
    return f"graph_{number}_{kernel}" if is_cpp else kernel
