"""Follows torch.compile: when it compiles and why again, and which source line its code comes from.

Nothing of the compiler is imported here; each part is set up when the program imports it. The
context of a compilation includes everything that it runs. After it, torch reports what was compiled
and why (`CompilationMetrics`), under the number that the context began with.
"""

import functools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.record.patch import AfterImport, Hooks, around_compilations, ignoring, replace

# Frames of the compiler's own, left out: torch's, and those of code that it made.
HIDDEN = [
    "*/torch/_dynamo/",
    "*/torch/_functorch/",
    "*/torch/_inductor/",
    "*<eval_with_key>",
    "torch/_compile.py",
    "torch/_utils_internal.py",
    "torch/fx/graph_module.py",
    "torch/autograd/function.py:Function.apply",
    "torch/autograd/function.py:BackwardCFunction.apply_boxed",
]
_COMPILES, _BEGIN, _END = 1, 0, 1  # Domain.COMPILATION and its phases (monitor.py)
_REGION, _COMPILATION = "Torch-Compiled Region: ", "torch.compile "
# By what torch calls the occasion; the backward is compiled when it first runs.
_PARTS = {
    "DYNAMO": "compilation of {}",
    "LAZY_BACKWARD": "compilation of {}, backward",
    "TRITON_AUTOTUNING": "tuning of the kernels of {}",
    "CUDAGRAPH_RECORDING": "recording of a CUDA graph of {}",
}
_REST = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")
_AGAIN = re.compile(r"/(\d+)(?:_\d+)?$")
_VALUE = re.compile(r"(expected|actual|==|!=|<=|>=|<|>) -?\d[\d.e+-]*")
_MOST_REASONS = 32  # of a program: each is a context of its own
_LONGEST = 160  # characters of a reason
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
Place = tuple[str, str, int]


class CompilerWatch(Hooks):
    """Shows compiled code as such, with its source lines."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._named: set[tuple[str, Any]] = set()
        self._reasons: set[str] = set()
        self._restore = []
        self._watches = [
            AfterImport("torch._inductor.config", self._show_kernels),
            AfterImport("torch._inductor.debug", self._follow_kernels),
        ]

    def install(self) -> None:
        """Follow what is compiled from now on; earlier compilations stay unknown."""
        for watch in self._watches:
            self._restore.append(watch.remove)
            watch.install()
        self._restore += around_compilations(self._compilation)

    def name_all(self) -> None:
        """Give what has been compiled the names and lines that the file shows."""
        self._name_compilations()
        cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        files = list(getattr(cache, "linemaps", ()))
        for key, file, line in self._extension.lines_of(files) if files else ():
            frames = cache.stack_frames_for_code(file, line) or []
            if place := _users([(frame["name"], frame["filename"], frame["line"]) for frame in frames]):
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
                self._restore.append(functools.partial(setattr, section, name, before))

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

        self._restore.append(replace(debug, "set_kernel_post_grad_provenance_tracing", traced))

    @contextmanager
    def _compilation(self, trigger: Any = None, number: object = "", *_: object) -> Iterator[None]:
        """The context of a compilation, with everything that it runs."""
        self._name_compilations()  # torch remembers the last 64
        self._extension.emit(_COMPILES, _BEGIN, str(number))
        part = getattr(trigger, "name", "DYNAMO")
        token = self._extension.enclose(f"{_COMPILATION}{number} {part}")
        try:
            yield
        finally:
            self._extension.end(token)
            self._extension.emit(_COMPILES, _END, str(number))

    def _name_compilations(self) -> None:
        utils: Any = sys.modules.get("torch._dynamo.utils")
        with ignoring(Exception):  # torch's metrics have no stable form
            for metrics in utils.get_compilation_metrics():
                at = metrics.compile_id, metrics.start_time_us
                if metrics.compile_id and metrics.co_name and at not in self._named:
                    self._named.add(at)
                    self._name_compilation(metrics.compile_id, metrics)

    def _name_compilation(self, number: str, metrics: Any) -> None:
        name, *place = _function(metrics)
        again = self._again(number, metrics)
        describe = self._extension.describe_annotation
        describe(_REGION + number, f"compiled region {name}", *place)
        for part, what in _PARTS.items():
            describe(f"{_COMPILATION}{number} {part}", f"{what.format(name)}{again}", *place)

    def _again(self, number: str, metrics: Any) -> str:
        count = _AGAIN.search(number)
        if not count or not int(count[1]):
            return ""
        why = _plain(metrics.recompile_reason or "")
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "another reason"
        return f", again: {why}" if why else ", again"


def _innermost(stack: str) -> Place | None:
    """The user's line of a stack as text, outermost first."""
    return _users([(name.strip(), file, int(line)) for file, line, name in reversed(_PLACE.findall(stack))])


def _users(places: list[Place]) -> Place | None:
    """The innermost place outside torch; else the innermost."""
    home = str(Path(sys.modules["torch"].__file__ or "").parent)
    return next(iter([place for place in places if not place[1].startswith(home)] or places), None)


def _shown_name(kernel: str) -> str:
    """As the compiled code announces it when it runs: with the number of its graph."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    number = getattr(getattr(virtualized, "V", None), "graph", None)
    number = getattr(number, "graph_id", None)
    is_cpp = kernel.startswith("cpp_") and number is not None
    return f"graph_{number}_{kernel}" if is_cpp else kernel


def _function(metrics: Any) -> tuple[str, str, int]:
    """Name, file and line of what was compiled; a module of torch's own has a placeholder name."""
    name, file, line = metrics.co_name, metrics.co_filename or "", metrics.co_firstlineno or 0
    if "/torch/_dynamo/" in file:
        return "(torch)", "", 0
    if rest := _REST.fullmatch(name):
        return f"{rest['name']} after a graph break", file, int(rest["line"])
    return name, file, line


def _plain(reason: str) -> str:
    """A reason with numbers replaced, so that equal reasons are counted together.

    Example:
        >>> _plain("0/1: tensor 'x' size mismatch at index 0. expected 8, actual 9")
        "tensor 'x' size mismatch at index 0. expected #, actual #"
    """
    first = reason.strip().partition("\n")[0]
    first = re.sub(r"^[!\d/_]+: ", "", first)
    return _VALUE.sub(r"\1 #", first)[:_LONGEST]
