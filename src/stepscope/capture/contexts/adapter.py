"""What a framework must do to be followed, and PyTorch doing it.

An adapter feeds the collector (docs/contexts.md, "The shim"). PyTorch's operators come from its C++
hooks. One for another framework may be written in Python, on the extension's functions alone:
`begin(name)` and `end(token)` around each operator, `tell` for compilations and memory.
"""

from __future__ import annotations

from typing import Any, Protocol

from stepscope.capture.contexts.options import ContextOptions

COMPILATION, BEGIN, END = 1, 0, 1


class Adapter(Protocol):
    """A framework's side of the shim."""

    def attach(self) -> None:
        """From now on tell of every operator, in all threads."""

    def detach(self) -> None:
        """Leave the framework as it was."""

    def name_contexts(self) -> None:
        """Give what is named later than it runs the names that the file shows."""


class PyTorchAdapter:
    """Follows PyTorch.

    Args:
        extension: the collector.
        options: what to collect.
    """

    def __init__(self, extension: Any, options: ContextOptions) -> None:
        from stepscope.capture.contexts.compiled import CompilerWatch

        self._extension = extension
        self._options = options
        self._paths: Any = None
        self._compiler = CompilerWatch(extension, self._tell_compilation)

    def attach(self) -> None:
        """From now on tell of every operator, in all threads."""
        if self._options.modules:
            from stepscope.capture.contexts import paths

            self._paths = paths.ModulePaths(self._extension)
            resolve = paths.hidden_from_compiler(self._paths)
            self._extension.watch_modules(paths.CALL_CODE, resolve)
        if self._options.memory and (problem := self._extension.watch_memory(True)):
            self._extension.note(f"memory is not counted: {problem}")
        self._compiler.install()
        self._extension.follow_pytorch(True)

    def detach(self) -> None:
        """Leave PyTorch as it was."""
        self._extension.follow_pytorch(False)
        self._compiler.remove()
        self._extension.watch_memory(False)

    def name_contexts(self) -> None:
        """Give modules and compiled code met so far the names that the file shows."""
        if self._paths is not None:
            self._paths.name_all()
        self._compiler.name_all()

    def _tell_compilation(self, phase: str, name: str) -> None:
        self._extension.tell(COMPILATION, BEGIN if phase == "begin" else END, name)
