"""The model trees: each module by the path that `state_dict` uses, and what each call means.

A module object may appear at several paths (a shared embedding), so a tree has one node per path,
and the calling module determines which node a call means. Wrappers that only forward a call
(DistributedDataParallel, torch.compile) share the node of the module they wrap.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from stepscope.record.call_sites import holder_in, is_library, name_in, owner_of, user_frame

_OWN_REFERENCES = 2  # to a module: of its node, and of the call that counts them


class ModuleRegistry:
    """All model trees of the process.

    A module called while no known module runs is a root. A root may turn out to be part of a larger
    model that is called later, so the trees are refreshed before recording begins.
    """

    def __init__(self) -> None:
        self.top_level = RecordedModule(None, "", "", None)
        self.roots: list[RecordedModule] = []
        self._index: dict[int, list[RecordedModule]] = {}

    def add_root(self, module: Any, name: str | None) -> RecordedModule:
        """Make `module` a root, named by its class where it has no parameters or no name."""
        if name is None or is_bare(module):
            name = type(unwrap(module)).__name__
        root = build_tree(module, self._unused(name))
        self.roots.append(root)
        self._add_to_index(root)
        if profiler_runs():
            # Paths of other roots are already in the trace and can no longer get a prefix.
            self._set_path(root)
        else:
            self._set_paths()
        return root

    def refresh(self) -> None:
        """Drop roots that are part of others, rebuild the trees, and fix all paths."""
        roots, self.roots, self._index = self.roots, [], {}
        self.top_level.resolved.clear()
        inner = {id(node.module) for root in roots for node in root.walk() if node is not root}
        for old in roots:
            if id(old.module) not in inner:
                self._rebuild(old)
        for old in roots:
            old.take_apart()
        self._set_paths()

    def clear(self) -> None:
        """Release all modules, also where the garbage collector is off."""
        for root in self.roots:
            root.take_apart()
        self.roots.clear()
        self._index.clear()
        self.top_level.resolved.clear()

    def nodes(self) -> Iterator[RecordedModule]:
        return (node for root in self.roots for node in root.walk())

    def has(self, module: Any) -> bool:
        return any(node.module is module for node in self._index.get(id(module), ()))

    def resolve(self, parent: RecordedModule, module: Any) -> RecordedModule | None:
        """The node meant by a call of `module` while `parent` runs; None for no range."""
        node = self._find(parent, unwrap(module))
        frame = user_frame(sys._getframe(1)) if node is None or node.site is None else None
        if node is None and parent is self.top_level:
            node = self._in_owner(frame, module) or self._in_variable(frame, module)
        if node is None:
            return None
        if frame is not None and node.site is None:
            node.site = frame.f_code.co_filename, frame.f_lineno
        self._remember(parent, node, module)
        return None if node is parent else node

    def _set_paths(self) -> None:
        for root in self.roots:
            self._set_path(root)

    def _set_path(self, root: RecordedModule) -> None:
        """A single model needs no prefix; bare modules do not count."""
        models = [root for root in self.roots if not is_bare(root.module)]
        root.set_prefix("" if models == [root] else root.name)

    def _find(self, parent: RecordedModule, module: Any) -> RecordedModule | None:
        places = self._index.get(id(module), [])
        return next(iter([node for node in places if parent in node.lineage()] or places), None)

    def _in_owner(self, frame: FrameType | None, module: Any) -> RecordedModule | None:
        """The node in the model whose method calls `module`: `model.encode`, `model.training_step`.

        Only the call of a module itself shows as one, so a method other than `forward` is found by its frame.
        """
        owner, caller = owner_of(frame, unwrap(module))
        if owner is None:
            return None
        is_users = caller is not None and not is_library(caller.f_code.co_filename)
        self.add_root(owner, name_in(caller, owner) if is_users else None)
        return self._find(self.top_level, unwrap(module))

    def _in_variable(self, frame: FrameType | None, module: Any) -> RecordedModule | None:
        """The root that a variable names, or the node in what a variable holds.

        A second module in the same variable, as in a loop over layers, is known by its place.
        """
        name, inner = name_in(frame, module), unwrap(module)
        if not is_bare(module) and (name is None or self._unused(name) != name):
            holder, place = holder_in(frame, inner)
            name = place or name
            if holder is not inner:
                self.add_root(holder, name)
                return self._find(self.top_level, inner)
        return self._root_for(module, name)

    def _root_for(self, module: Any, name: str | None) -> RecordedModule:
        """Loss modules are often created for each call: those of one class share a root.

        A copy of a model, as for each task, takes the place of the one that its variable held before.
        """
        for root in [root for root in self.roots if type(root.module) is type(unwrap(module))]:
            if is_bare(module) and is_bare(root.module):
                return root
            if root.name == name and sys.getrefcount(root.module) <= _OWN_REFERENCES:
                self._drop(root)
        return self.add_root(module, name)

    def _drop(self, root: RecordedModule) -> None:
        """Forget a tree."""
        gone = set(root.walk())
        for node in gone:
            self._index[id(node.module)].remove(node)
        for node in (self.top_level, *self.nodes()):
            node.resolved = {key: meant for key, meant in node.resolved.items() if meant not in gone}
        self.roots.remove(root)
        root.take_apart()

    def _remember(self, parent: RecordedModule, node: RecordedModule, module: Any) -> None:
        """Cache the answer for the next such call, wrapped modules included.

        Only modules that a tree keeps alive are cached: the id of others may be reused.
        """
        if unwrap(module) is not node.module:
            return
        parent.resolved[id(module)] = None if node is parent else node
        for inner in list(wrappers(module))[1:]:
            node.resolved[id(inner)] = None

    def _rebuild(self, old: RecordedModule) -> None:
        root = build_tree(old.module, old.name)
        sites = {node.inner: node.site for node in old.walk()}
        for node in root.walk():
            node.site = sites.get(node.inner)
        self.roots.append(root)
        self._add_to_index(root)

    def _add_to_index(self, root: RecordedModule) -> None:
        for node in root.walk():
            self._index.setdefault(id(node.module), []).append(node)

    def _unused(self, name: str) -> str:
        return unused_name(name, {root.name for root in self.roots})


def unused_name(name: str, taken: set[str]) -> str:
    """The name, with a number from 2 on where others have it."""
    candidates = (name if n == 1 else f"{name}_{n}" for n in range(1, len(taken) + 2))
    return next(candidate for candidate in candidates if candidate not in taken)


def profiler_runs() -> bool:
    """Whether torch.profiler records this thread."""
    autograd: Any = torch.autograd
    return bool(autograd._profiler_enabled())


def is_bare(module: Any) -> bool:
    """Whether a module has no parameters: a loss, a transform."""
    return next(iter(module.parameters()), None) is None


Json = dict[str, Any]


def describe_registry(registry: ModuleRegistry) -> Json:
    """The content of modules.json for the trees of `registry`."""
    return {"roots": [_describe(root)[0] for root in registry.roots]}


def _describe(node: RecordedModule) -> tuple[Json, dict[int, Any]]:
    """A node as JSON, and the distinct parameters in its subtree."""
    parameters = {id(p): p for p in node.module._parameters.values() if p is not None}
    children = []
    for child in node.children:
        described, below = _describe(child)
        children.append(described)
        parameters.update(below)
    scripted = is_scripted(node.module)
    cls: type = type(node.module)
    file, line = (None, None) if scripted else class_site(cls)
    call_file, call_line = node.site or (None, None)
    return {
        "name": node.name,
        "path": node.path,
        "class": node.module.original_name if scripted else class_name(cls),
        **({"scripted": True} if scripted else {}),
        "file": file,
        "line": line,
        "call_file": call_file,
        "call_line": call_line,
        "parameters": sum(_count(p) for p in parameters.values()),
        "parameter_bytes": sum(size * p.element_size() for p in parameters.values() if (size := _count(p))),
        "children": children,
    }, parameters


def _count(parameter: Any) -> int:
    """Elements of a parameter; 0 while a lazy module has not seen its first input."""
    try:
        return int(parameter.numel())
    except (RuntimeError, ValueError):
        return 0


def class_name(cls: type) -> str:
    """A class with its module; a class that a function made is called what the function calls it.

    Example:
        >>> class_name(int)
        'builtins.int'
    """
    full = cls.__qualname__
    own = full if full.rpartition(".")[2] == cls.__name__ else cls.__name__
    return f"{cls.__module__}.{own}"


@functools.cache
def class_site(cls: type) -> tuple[str | None, int | None]:
    """File and line of a class definition, None where it has none.

    `inspect.getsourcelines` parses the whole file, which for a large model file takes longer than
    a training step.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None, None
    definition = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    numbers = (number for number, text in enumerate(linecache.getlines(file), 1) if definition.match(text))
    return str(Path(file).absolute()), next(numbers, None)


RANGE_PREFIX = "stepscope.module: "

_WRAPPED = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


class RecordedModule:
    """One place in a model tree."""

    __slots__ = ("children", "inner", "label", "module", "name", "parent", "path", "resolved", "site")

    def __init__(self, module: Any, name: str, inner: str, parent: RecordedModule | None) -> None:
        self.module = module  # without wrappers
        self.name = name  # in the parent
        self.inner = self.path = inner  # below the root, and below the root's path, if that has one
        self.label = RANGE_PREFIX + inner  # of its ranges
        self.parent = parent
        self.children: list[RecordedModule] = []
        self.site: tuple[str, int] | None = None  # of the first call seen
        # What a call of the module with this id means while this node runs; None for no range.
        self.resolved: dict[int, RecordedModule | None] = {}

    def set_prefix(self, prefix: str) -> None:
        """Put the whole subtree below the path `prefix`."""
        for node in self.walk():
            node.path = ".".join(part for part in (prefix, node.inner) if part)
            node.label = RANGE_PREFIX + node.path

    def walk(self) -> Iterator[RecordedModule]:
        """This node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def take_apart(self) -> None:
        """Remove the references between nodes, which are cycles, and to modules."""
        for node in list(self.walk()):
            node.module = node.parent = None
            node.children, node.resolved = [], {}

    def lineage(self) -> Iterator[RecordedModule]:
        """This node and all above it, the root last."""
        node: RecordedModule | None = self
        while node is not None:
            yield node
            node = node.parent


def unwrap(module: Any) -> Any:
    *_, inner = wrappers(module)
    return inner


def is_scripted(module: Any) -> bool:
    """Whether `torch.jit.script` or `torch.jit.trace` made a module."""
    return isinstance(module, torch.jit.ScriptModule)


def wrappers(module: Any) -> Iterator[Any]:
    """`module` and each module that it wraps, outermost first."""
    yield module
    while name := _WRAPPED.get(type(module).__name__):
        inner = getattr(module, name, module)
        if inner is module:
            return
        yield inner
        module = inner


def build_tree(module: Any, name: str) -> RecordedModule:
    """The tree below a root module, with a child for each submodule, in order of registration."""
    root = RecordedModule(unwrap(module), name, "", None)
    pending = [root]
    while pending:
        node = pending.pop()
        node.children = list(_children(node))
        pending.extend(node.children)
    return root


def _children(node: RecordedModule) -> Iterator[RecordedModule]:
    for name, child in node.module._modules.items():
        if child is None:
            continue
        module = unwrap(child)
        # A module registered below itself would make the tree endless.
        if all(above.module is not module for above in node.lineage()):
            inner = f"{node.inner}.{name}" if node.inner else name
            yield RecordedModule(module, name, inner, node)
