"""A range in the trace for every module call.

`nn.Module.__call__` is replaced, and only while steps are being observed or recorded. Forward hooks
would also work, but cost twice as much, make torch.compile warn and recompile, and leave a range
open on Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from stepscope.record.module_registry import ModuleRegistry, RecordedModule
from stepscope.record.patch import ignoring
from stepscope.record.ranges import Range
from stepscope.record.torch_internals import CompilerPaused, compiler_takes, hide_from_compiler, hide_methods

if TYPE_CHECKING:
    from stepscope.record.part_timer import PartTimer

_Module: Any = torch.nn.Module


class ModuleRanges:
    """Opens a range named by the module's path around every call of a known module.

    Only the last installed instance is active: two would write every range twice. `on_outermost` is called
    for each call that no other module makes, before its range opens, and `timer` measures these calls.
    """

    _installed: ClassVar[ModuleRanges | None] = None

    def __init__(self, registry: ModuleRegistry) -> None:
        self._running = _Running(registry.top_level)
        self._forest = registry
        self._on = False
        self.on_outermost: Callable[[Any], None] | None = None
        self.timer: PartTimer | None = None
        self.failure: str | None = None
        self._original: Callable[..., Any] = _Module.__call__
        self._call = self._make_call()
        self._is_wrapped = False  # whether the program has put a call of its own around ours
        self._is_quiet = False

    @property
    def running(self) -> RecordedModule:
        """The innermost module that runs in this thread; `top_level` where none does."""
        return self._running.nodes[-1]

    def install(self, *, quiet: bool = False) -> None:
        """From now on module calls are ranges, or, if quiet, outermost ones are only reported."""
        self._is_quiet = quiet
        if self._on:
            return
        if ModuleRanges._installed:
            ModuleRanges._installed.remove()
        ModuleRanges._installed = self
        if not self._is_wrapped:
            self._original = _Module.__call__
            _Module.__call__ = self._call
            compiler_takes(self._call, instead_of=self._original)
        self._on = True

    def remove(self) -> None:
        if not self._on:
            return
        self._on = False
        ModuleRanges._installed = None
        self._is_wrapped = _Module.__call__ is not self._call
        if not self._is_wrapped:
            _Module.__call__ = self._original
            compiler_takes(self._original, instead_of=self._call)

    def _make_call(self) -> Callable[..., Any]:
        ranges, running, top_level = self, self._running, self._forest.top_level

        # torch.profiler's Python tracer takes the module that is called from a local named `self`.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if running.is_reported or not ranges._on:
                return ranges._original(self, *args, **kwargs)
            nodes = running.nodes
            parent = nodes[-1]
            timer = ranges._begin_outermost(self) if parent is top_level else None
            running.is_reported = ranges._is_quiet
            try:
                node = ranges._node_of(parent, self)
                if node is None:
                    return ranges._original(self, *args, **kwargs)
                depth = len(nodes)
                try:
                    nodes.append(node)
                    with Range(node.label):
                        return ranges._original(self, *args, **kwargs)
                finally:
                    del nodes[depth:]
            finally:
                running.is_reported = False
                if timer is not None:
                    timer.part_ends()

        hide_from_compiler(call.__code__)
        return call

    def _node_of(self, parent: RecordedModule, module: Any) -> RecordedModule | None:
        """The node that a call means; None for no range."""
        if self._is_quiet or not self._on:
            return None
        try:
            return parent.resolved[id(module)]
        except KeyError:
            return self._resolve(parent, module)

    def _begin_outermost(self, module: Any) -> PartTimer | None:
        """Report a call that no other module makes; the timer that waits for its end, if any."""
        if self.on_outermost is not None:
            self._notify_outermost(module)
        timer = self.timer if self._on else None
        return timer if timer is not None and timer.model_begins() else None

    def _notify_outermost(self, module: Any) -> None:
        with CompilerPaused():
            with ignoring(Exception, then=partial(self._note, module)):
                if self.on_outermost is not None:
                    self.on_outermost(module)
                return
            self.on_outermost = None

    def _resolve(self, parent: RecordedModule, module: Any) -> RecordedModule | None:
        """The call must continue whatever the user's objects do when inspected."""
        with CompilerPaused(), ignoring(Exception, then=partial(self._note, module)):
            return self._forest.resolve(parent, module)
        return None

    def _note(self, module: Any, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error} on a call of {type(module)}"


class _Running(threading.local):
    """The modules that run in this thread, outermost first, after the top level."""

    def __init__(self, top_level: RecordedModule) -> None:
        self.nodes = [top_level]
        self.is_reported = False  # whether a module runs whose call was only reported


hide_methods(ModuleRanges)
