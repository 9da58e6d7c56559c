"""A range in the trace for every module call.

`nn.Module.__call__` is replaced, and only while steps are being observed or recorded. Forward hooks
would also work, but cost twice as much, make torch.compile warn and recompile, and leave a range
open on Ctrl-C. `_RecordFunctionFast` costs a fifth of `record_function` and shows as a range
of category `cpu_op`; without a running profiler it does next to nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

import torch

from stepscope.capture.model_tree import Node
from stepscope.capture.module_registry import ModuleRegistry

_Module: Any = torch.nn.Module
Range: Any = getattr(
    torch._C._profiler, "_RecordFunctionFast", torch.autograd.profiler.record_function
)


class ModuleRanges:
    """Opens a range named by the module's path around every call of a known module.

    Only the last installed instance is active: two would write every range twice. `on_outermost`
    is called for each call that no other module makes, before its range opens.
    """

    _installed: ClassVar[ModuleRanges | None] = None

    def __init__(self, registry: ModuleRegistry) -> None:
        self._running = _Running(registry.top_level)
        self._forest = registry
        self._on = False
        self._is_quiet = False
        self.on_outermost: Callable[[Any], None] | None = None
        self.failure: str | None = None
        self._original: Callable[..., Any] = _Module.__call__
        self._call = self._make_call()

    @property
    def running(self) -> Node:
        """The innermost module that runs in this thread; `top_level` where none does."""
        return self._running.nodes[-1]

    def install(self) -> None:
        """From now on module calls are ranges."""
        self._is_quiet = False
        if self._on:
            return
        if ModuleRanges._installed:
            ModuleRanges._installed.remove()
        ModuleRanges._installed = self
        self._original = _Module.__call__
        _Module.__call__ = self._call
        compiler_takes(self._call, instead_of=self._original)
        self._on = True

    def only_report(self) -> None:
        """From now on `on_outermost` is called as before, but no range opens."""
        self._is_quiet = True

    def remove(self) -> None:
        """Leave `nn.Module` as it was."""
        if not self._on:
            return
        self._on = False
        ModuleRanges._installed = None
        if _Module.__call__ is self._call:
            _Module.__call__ = self._original
            compiler_takes(self._original, instead_of=self._call)

    def _make_call(self) -> Callable[..., Any]:
        ranges, running, top_level = self, self._running, self._forest.top_level
        unnamed = Node(None, "", "", None)

        # torch.profiler's Python tracer takes the module that is called from a local named `self`.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not ranges._on:
                return ranges._original(self, *args, **kwargs)
            nodes = running.nodes
            parent = nodes[-1]
            if parent is unnamed:
                return ranges._original(self, *args, **kwargs)
            if parent is top_level and ranges.on_outermost is not None:
                ranges._notify_outermost(self)
                if not ranges._on:
                    return ranges._original(self, *args, **kwargs)
            if ranges._is_quiet:
                nodes.append(unnamed)
                try:
                    return ranges._original(self, *args, **kwargs)
                finally:
                    nodes.pop()
            try:
                node = parent.resolved[id(self)]
            except KeyError:
                node = ranges._resolve(parent, self)
            if node is None:
                return ranges._original(self, *args, **kwargs)
            nodes.append(node)
            try:
                with Range(node.label):
                    return ranges._original(self, *args, **kwargs)
            finally:
                nodes.pop()

        hide_from_compiler(call.__code__)
        return call

    def _notify_outermost(self, module: Any) -> None:
        with CompilerPaused():
            try:
                if self.on_outermost is not None:
                    self.on_outermost(module)
            except Exception as error:
                self._note(error, module)
                self.on_outermost = None

    def _resolve(self, parent: Node, module: Any) -> Node | None:
        """The call must continue whatever the user's objects do when inspected."""
        with CompilerPaused():
            try:
                return self._forest.resolve(parent, module)
            except Exception as error:
                self._note(error, module)
                return None

    def _note(self, error: Exception, module: Any) -> None:
        self.failure = f"{type(error).__name__}: {error} on a call of {type(module)}"


class _Running(threading.local):
    """The modules that run in this thread, outermost first, after the top level."""

    def __init__(self, top_level: Node) -> None:
        self.nodes = [top_level]


class CompilerPaused:
    """Inside a compiled model's first call, torch.compile would otherwise compile us as well."""

    def __enter__(self) -> None:
        self._callback = torch._C._dynamo.eval_frame.set_eval_frame(None)

    def __exit__(self, *exc: object) -> None:
        torch._C._dynamo.eval_frame.set_eval_frame(self._callback)


def compiler_takes(call: Callable[..., Any], instead_of: Callable[..., Any]) -> None:
    """Make torch.compile continue with a module's forward where it meets this `__call__`.

    It does so for the `nn.Module.__call__` that it saw when it was imported; any other it would
    compile as the user's.
    """
    module: Any = sys.modules.get("torch._dynamo.variables.nn_module")
    if getattr(module, "unpatched_nn_module_call", None) is instead_of:
        module.unpatched_nn_module_call = call


def hide_from_compiler(code: CodeType) -> None:
    """Make torch.compile skip a function of ours and continue with what it calls."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    else:
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, default))


for _function in (
    ModuleRanges._resolve,
    ModuleRanges._notify_outermost,
    CompilerPaused.__enter__,
):
    hide_from_compiler(_function.__code__)
