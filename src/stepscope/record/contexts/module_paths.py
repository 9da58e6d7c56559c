"""The path in its model of each module that is called, kept without keeping the module alive.

A module that is called while no module known to a tree runs is the root of a tree. The collector asks once
for each module and place, and again after any known module has died, as its address may come again.
"""

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from stepscope.record.call_sites import name_in, self_of, user_frame
from stepscope.record.module_registry import build_tree, class_name, class_site, is_bare, unused_name, unwrap
from stepscope.record.torch_internals import CompilerPaused, hide_from_compiler

_Module: Any = torch.nn.Module
CALL_CODE = _Module._wrapped_call_impl.__code__


@dataclass
class _Root:
    name: str
    is_bare: bool
    module: Any  # a weak reference
    cls: type
    keys: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _ModulePlace:
    root: _Root
    path: str


class ModulePaths:
    """Finds the key of a module's call for the collector."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._module_died = native.module_died  # the extension's own names go at exit
        self._roots: list[_Root] = []
        self._known: dict[int, tuple[Any, list[_ModulePlace]]] = {}
        self._places: dict[int, _ModulePlace] = {}

    def resolve(self, module: Any, inside: int) -> int | None:
        """The key of a call of `module` inside that with key `inside`; None for no frame, as of a wrapper."""
        target = unwrap(module)
        outer = self._places.get(inside)
        place = self._find(target, outer)
        if place is None and outer is None:
            place = self._add_root(target, _name_where_called(module))
        if place is None:
            place = _ModulePlace(outer.root, outer.path + "." + type(target).__name__) if outer else None
        return None if place is None or place == outer else self._key(place, type(target))

    def close(self) -> None:
        self._known.clear()

    def name_all(self) -> None:
        """Name every key as the models known by now require: one model needs no prefix."""
        for root in self._roots:
            for key, path in root.keys.items():
                self._native.rename(key, self._shown_name(root, path))

    def _shown_name(self, root: _Root, path: str) -> str:
        models = [other for other in self._roots if not other.is_bare]
        prefix = "" if models == [root] else root.name
        return ".".join(part for part in (prefix, path) if part) or root.name

    def _find(self, module: Any, outer: _ModulePlace | None) -> _ModulePlace | None:
        reference, places = self._known.get(id(module), (None, []))
        if reference is None or reference() is not module:
            return None
        if outer:
            for place in places:
                if place.root is outer.root and place.path.startswith(outer.path):
                    return place
        return places[0]

    def _add_root(self, module: Any, name: str | None) -> _ModulePlace:
        bare = is_bare(module)
        name = type(module).__name__ if bare or name is None else name
        root = self._same(name, type(module), bare)
        if root is None:
            name = unused_name(name, {root.name for root in self._roots})
            root = _Root(name, bare, None, type(module))
            self._roots.append(root)
            self.name_all()  # the file may be written at any moment
        if bare:  # often created for each call
            return _ModulePlace(root, "")
        root.module = weakref.ref(module)
        tree = build_tree(module, name)
        for node in tree.walk():
            if id(node.module) not in self._known:
                self._known[id(node.module)] = weakref.ref(node.module), []
                weakref.finalize(node.module, self._forget, id(node.module)).atexit = False
            self._known[id(node.module)][1].append(_ModulePlace(root, node.inner))
        tree.take_apart()  # its references are cycles
        return self._known[id(module)][1][-1]

    def _same(self, name: str, cls: type, is_bare: bool) -> _Root | None:
        """Bare modules of one class share a root, as does a model with the dead one it replaces."""
        for root in self._roots:
            if root.name == name and root.cls is cls and (is_bare or root.module() is None):
                return root
        return None

    def _forget(self, address: int) -> None:
        self._known.pop(address, None)
        self._module_died()

    def _key(self, place: _ModulePlace, cls: type) -> int | None:
        file, line = class_site(cls)
        name = ".".join(part for part in (place.root.name, place.path) if part)
        key: int | None = self._native.module_key(name, file or "", line or 0, class_name(cls))
        if key is not None:
            place.root.keys[key] = place.path
            self._places[key] = place
            self._native.rename(key, self._shown_name(place.root, place.path))
        return key


def _name_where_called(module: Any) -> str | None:
    """What the user calls `module` where it is called; an operator deep inside has led us here."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        is_call = frame.f_code is CALL_CODE and self_of(frame) is module
        frame = frame.f_back
        if is_call:
            return name_in(user_frame(frame), module)
    return None


def hidden_from_compiler(paths: ModulePaths) -> Any:
    """`paths.resolve`, for a caller in whose place torch.compile may be at work."""

    def resolve(module: Any, inside: int) -> int | None:
        with CompilerPaused():
            return paths.resolve(module, inside)

    hide_from_compiler(resolve.__code__)
    return resolve
