"""When torch.compile compiles, what, and why again: a context for each compilation.

All that a compilation runs is in its context. What it compiled and why, torch tells when it is over
(`CompilationMetrics`), by the number that the context was begun with.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Told = Callable[[str, str], object]
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
        tell: called with "begin" or "end" and the compilation's number.
    """

    def __init__(self, extension: Any, tell: Told) -> None:
        self._extension = extension
        self._tell = tell
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
        """Give the contexts of what has been compiled the names that the file shows."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        with suppress(Exception):  # what torch tells about itself has no settled form
            for told in utils.get_compilation_metrics():
                at = told.compile_id, told.start_time_us
                if told.compile_id and told.co_name and at not in self._named:
                    self._named.add(at)
                    self._name(told.compile_id, told)

    @contextmanager
    def _context(self, trigger: Any = None, number: object = "", *_: object) -> Iterator[None]:
        self.name_all()  # torch remembers the last 64
        self._tell("begin", str(number))
        part = getattr(trigger, "name", "DYNAMO")
        token = self._extension.enclose(f"{_COMPILATION}{number} {part}")
        try:
            yield
        finally:
            self._extension.end(token)
            self._tell("end", str(number))

    def _name(self, number: str, told: Any) -> None:
        name, *place = _function(told)
        again = self._again(number, told)
        describe = self._extension.describe_annotation
        describe(_REGION + number, f"compiled region {name}", *place)
        for part, what in _PARTS.items():
            shown = f"{what.format(name)}{again}"
            describe(f"{_COMPILATION}{number} {part}", shown, *place)

    def _again(self, number: str, told: Any) -> str:
        """Why it was compiled again, empty where it is the first time."""
        count = _AGAIN.search(number)
        if not count or not int(count[1]):
            return ""
        why = _plain(told.recompile_reason or "")
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "another reason"
        return f", again: {why}" if why else ", again"


def _function(told: Any) -> tuple[str, str, int]:
    """Name, file and line of what was compiled; a module of torch's own is called by a stand-in."""
    name, file, line = told.co_name, told.co_filename or "", told.co_firstlineno or 0
    if "/torch/_dynamo/" in file:
        return "(torch)", "", 0
    if rest := _REST.fullmatch(name):
        return f"{rest['name']} after a graph break", file, int(rest["line"])
    return name, file, line


def _plain(reason: str) -> str:
    """A reason without the numbers that would make every one new.

    Example:
        >>> _plain("0/1: tensor 'x' size mismatch at index 0. expected 8, actual 9")
        "tensor 'x' size mismatch at index 0. expected #, actual #"
    """
    first = reason.strip().partition("\n")[0]
    first = re.sub(r"^[!\d/_]+: ", "", first)
    return _VALUE.sub(r"\1 #", first)[:_LONGEST]
