"""The model trees: each module by the path that `state_dict` uses.

A module object may appear at several paths (a shared embedding), so a tree has one node per path,
and the calling module determines which node a call means. Wrappers that only forward a call
(DistributedDataParallel, torch.compile) share the node of the module they wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

RANGE_PREFIX = "stepscope.module: "

_WRAPPED = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


class ModuleNode:
    """One place in a model tree."""

    __slots__ = ("children", "inner", "label", "module", "name", "parent", "path", "resolved", "site")

    def __init__(self, module: Any, name: str, inner: str, parent: ModuleNode | None) -> None:
        self.module = module  # without wrappers
        self.name = name  # in the parent
        self.inner = self.path = inner  # below the root, and below the root's path, if that has one
        self.label = RANGE_PREFIX + inner  # of its ranges
        self.parent = parent
        self.children: list[ModuleNode] = []
        self.site: tuple[str, int] | None = None  # of the first call seen
        # What a call of the module with this id means while this node runs; None for no range.
        self.resolved: dict[int, ModuleNode | None] = {}

    def set_prefix(self, prefix: str) -> None:
        """Put the whole subtree below the path `prefix`."""
        for node in self.walk():
            node.path = ".".join(part for part in (prefix, node.inner) if part)
            node.label = RANGE_PREFIX + node.path

    def walk(self) -> Iterator[ModuleNode]:
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

    def lineage(self) -> Iterator[ModuleNode]:
        """This node and all above it, the root last."""
        node: ModuleNode | None = self
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


def build_tree(module: Any, name: str) -> ModuleNode:
    """The tree below a root module, with a child for each submodule, in order of registration."""
    root = ModuleNode(unwrap(module), name, "", None)
    pending = [root]
    while pending:
        node = pending.pop()
        node.children = list(_children(node))
        pending.extend(node.children)
    return root


def _children(node: ModuleNode) -> Iterator[ModuleNode]:
    for name, child in node.module._modules.items():
        if child is None:
            continue
        module = unwrap(child)
        # A module registered below itself would make the tree endless.
        if all(above.module is not module for above in node.lineage()):
            inner = f"{node.inner}.{name}" if node.inner else name
            yield ModuleNode(module, name, inner, node)
