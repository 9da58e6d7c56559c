"""When torch.compile compiles, what, and why again: a context for each compilation.

The context of a compilation includes everything that it runs. After it, torch reports what was
compiled and why (`CompilationMetrics`), under the number that the context began with.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Report = Callable[[str, str], object]
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
_MOST_REASONS = 32
_LONGEST = 160


class Compilations:
    """Follows the compilations of all threads.

    Args:
        extension: the collector.
        report: called with "begin" or "end" and the compilation's number.
    """

    def __init__(self, extension: Any, report: Report) -> None:
        self._extension = extension
        self._report = report
        self._named: set[tuple[str, Any]] = set()
        self._reasons: set[str] = set()

    def follow(self) -> Callable[[], object]:
        """Begin, once `torch._dynamo.callback` is there.

        Returns:
            A function that ends it.
        """
        handler: Any = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
        install = getattr(handler, "install_callbacks", None)
        if install is None:
            return lambda: None

        @contextmanager
        def around(*args: Any, **kwargs: Any) -> Iterator[None]:
            with install(*args, **kwargs), self._context(*args):
                yield

        handler.install_callbacks = around
        return lambda: vars(handler).pop("install_callbacks", None)

    def name_all(self) -> None:
        """Give the contexts of compilations their final names."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        with suppress(Exception):  # torch's metrics have no stable form
            for metrics in utils.get_compilation_metrics():
                at = metrics.compile_id, metrics.start_time_us
                if metrics.compile_id and metrics.co_name and at not in self._named:
                    self._named.add(at)
                    self._name(metrics.compile_id, metrics)

    @contextmanager
    def _context(self, trigger: Any = None, number: object = "", *_: object) -> Iterator[None]:
        self.name_all()  # torch remembers the last 64
        self._report("begin", str(number))
        part = getattr(trigger, "name", "DYNAMO")
        token = self._extension.enclose(f"{_COMPILATION}{number} {part}")
        try:
            yield
        finally:
            self._extension.end(token)
            self._report("end", str(number))

    def _name(self, number: str, metrics: Any) -> None:
        name, *place = _function(metrics)
        again = self._again(number, metrics)
        describe = self._extension.describe_annotation
        describe(_REGION + number, f"compiled region {name}", *place)
        for part, what in _PARTS.items():
            shown = f"{what.format(name)}{again}"
            describe(f"{_COMPILATION}{number} {part}", shown, *place)

    def _again(self, number: str, metrics: Any) -> str:
        """Why it was compiled again, empty where it is the first time."""
        count = _AGAIN.search(number)
        if not count or not int(count[1]):
            return ""
        why = _plain(metrics.recompile_reason or "")
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "another reason"
        return f", again: {why}" if why else ", again"


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
