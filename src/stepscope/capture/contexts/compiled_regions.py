"""Follows torch.compile: when it compiles, and which source line its code comes from.

Nothing of the compiler is imported here; each part is set up when the program imports it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.contexts.compilations import Compilations, Report
from stepscope.capture.patch import AfterImport

# Frames of the compiler's own, left out: torch's, and those of code that it made.
HIDDEN = ["*/torch/_dynamo/", "*/torch/_functorch/", "*/torch/_inductor/", "*<eval_with_key>",
          "torch/_compile.py", "torch/_utils_internal.py", "torch/fx/graph_module.py",
          "torch/autograd/function.py:Function.apply",
          "torch/autograd/function.py:BackwardCFunction.apply_boxed"]  # fmt: skip
# Compilation contexts begin in this file, which is not part of the program.
ANNOTATOR = "stepscope/capture/contexts/compilations.py"
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
Place = tuple[str, str, int]


class CompilerWatch:
    """Shows compiled code as such, with its source lines.

    Args:
        extension: the collector.
        report: called with "begin" or "end" and a compilation's number.
    """

    def __init__(self, extension: Any, report: Report) -> None:
        self._extension = extension
        self._compilations = Compilations(extension, report)
        self._undo: list[Callable[[], object]] = []
        self._watches = [
            AfterImport("torch._inductor.config", self._show_kernels),
            AfterImport("torch._inductor.debug", self._follow_kernels),
            AfterImport("torch._dynamo.callback", self._follow_compilations),
        ]

    def install(self) -> None:
        """Follow what is compiled from now on; earlier compilations stay unknown."""
        for watch in self._watches:
            watch.install()

    def remove(self) -> None:
        """Leave the compiler as it was."""
        for watch in self._watches:
            watch.remove()
        while self._undo:
            self._undo.pop()()

    def name_all(self) -> None:
        """Give what has been compiled the names and lines that the file shows."""
        self._compilations.name_all()
        cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        files = list(getattr(cache, "linemaps", ()))
        for key, file, line in self._extension.lines_of(files) if files else ():
            frames = cache.stack_frames_for_code(file, line) or []
            places = [(frame["name"], frame["filename"], frame["line"]) for frame in frames]
            if place := _users(places):
                self._extension.describe(key, *place)

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
            for _, file, line in filter(None, map(_innermost, stacks[:1])):
                self._extension.locate(_shown_name(kernel), file, line)
            return handle

        debug.set_kernel_post_grad_provenance_tracing = traced
        self._undo.append(
            lambda: setattr(debug, "set_kernel_post_grad_provenance_tracing", trace)
        )  # fmt: skip

    def _follow_compilations(self) -> None:
        self._undo.append(self._compilations.follow())


def _innermost(stack: str) -> Place | None:
    """The user's line of a stack as text, outermost first."""
    found = _PLACE.findall(stack)
    return _users([(name.strip(), file, int(line)) for file, line, name in reversed(found)])


def _users(places: list[Place]) -> Place | None:
    """The innermost place outside torch; else the innermost."""
    home = str(Path(sys.modules["torch"].__file__ or "").parent)
    outside = [place for place in places if not place[1].startswith(home)]
    return next(iter(outside or places), None)


def _shown_name(kernel: str) -> str:
    """As the compiled code announces it when it runs: with the number of its graph."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    number = getattr(getattr(virtualized, "V", None), "graph", None)
    number = getattr(number, "graph_id", None)
    is_cpp = kernel.startswith("cpp_") and number is not None
    return f"graph_{number}_{kernel}" if is_cpp else kernel
