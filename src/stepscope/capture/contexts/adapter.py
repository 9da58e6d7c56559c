"""Adapters: how a framework reports its operators to the collector.

An adapter feeds the collector (docs/guide/contexts.md, "The shim"). PyTorch's operators come from
its C++ hooks, JAX's calls from the slots of a type (jax/jax_adapter.py). One for another framework
may be written in Python, on the extension's functions alone: `begin(name)` and `end(token)` around
each operator, `emit` for compilations and memory.
"""

from __future__ import annotations

from typing import Any, Protocol

from stepscope.capture.contexts.context_options import ContextOptions

COMPILATION, BEGIN, END = 1, 0, 1


class Adapter(Protocol):
    """The framework's side of the shim."""

    def attach(self) -> None:
        """Report every operator from now on, in all threads."""

    def detach(self) -> None:
        """Leave the framework as it was."""

    def name_contexts(self) -> None:
        """Give contexts whose names are known only after they ran their final names."""


class PyTorchAdapter:
    """Reports PyTorch's operators.

    Args:
        extension: the collector.
        options: what to collect.
    """

    def __init__(self, extension: Any, options: ContextOptions) -> None:
        from stepscope.capture.contexts.compiled_regions import CompilerWatch

        self._extension = extension
        self._options = options
        self._paths: Any = None
        self._compiler = CompilerWatch(extension, self._report_compilation)

    def attach(self) -> None:
        """Report every operator from now on, in all threads."""
        if self._options.modules:
            from stepscope.capture.contexts import module_paths as paths

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
        if self._paths is not None:
            self._paths.close()
        self._compiler.remove()
        self._extension.watch_memory(False)

    def name_contexts(self) -> None:
        """Give the modules and compiled code seen so far their final names."""
        if self._paths is not None:
            self._paths.name_all()
        self._compiler.name_all()

    def _report_compilation(self, phase: str, name: str) -> None:
        self._extension.emit(COMPILATION, BEGIN if phase == "begin" else END, name)
