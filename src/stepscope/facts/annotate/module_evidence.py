"""Modules that a trace identifies, and the events that are calls of them.

Five kinds of evidence, the best first: the ranges that a stepscope capture writes, the `nn.Module` frames of
torch.profiler's Python stacks (`modules.modules`), the named scopes of compiled operations or the stacks in
which they were traced (`jax.modules`), and a model tree given in addition to the trace (`modules.matching`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.base.arrays import Ids, Ids32


@dataclass
class Module:
    """One module: its path and facts about it; `parent` is an index into the list of modules."""

    path: str
    name: str = ""
    kind: str = ""
    parent: int = -1
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Evidence:
    """Modules (parents before children) and the module of each event that is a call of one.

    If events identify a module without being calls of it, `calls` counts the calls. If they do so
    independently of their launch and of enclosing events, `own` is true, and `of_origin` has the
    module of an operation that was traced in a scope and at a row of `frames`; -1 for none.
    """

    how: str
    modules: list[Module]
    call_of: Ids32
    calls: Ids | None = None
    own: bool = False
    of_origin: Callable[[str, int], int] = lambda scope, frame: -1


def tree_modules(tree: Mapping[str, Any]) -> list[Module]:
    """The modules of a model tree in pre-order, `parent` as an index into the list.

    Args:
        tree: `{"roots": [...]}` as a capture has it, or one root; a node is
            `{"name", "class", "path"?, "children": [...]}` with any further facts.
    """
    modules: list[Module] = []
    stack = [(root, -1) for root in reversed(tree.get("roots", [tree] if tree else []))]
    while stack:
        node, parent = stack.pop()
        name = str(node.get("name", ""))
        modules.append(Module(_path(node, modules, parent), name, str(node.get("class", "")), parent, node))
        index = len(modules) - 1
        stack += [(child, index) for child in reversed(list(node.get("children", ())))]
    return modules


def _path(node: Mapping[str, Any], modules: list[Module], parent: int) -> str:
    if "path" in node:
        return str(node["path"])
    if parent < 0:
        return ""
    above = modules[parent].path
    return f"{above}.{node.get('name', '')}" if above else str(node.get("name", ""))


def enclosing(modules: Sequence[Module], module: int) -> list[int]:
    """A module and those around it, outermost first; none for -1."""
    return chain_of(module, lambda inner: modules[inner].parent)


def chain_of(row: int, around: Callable[[int], int]) -> list[int]:
    """A row and those around it, outermost first; none for -1.

    Example:
        >>> chain_of(2, [-1, 0, 1].__getitem__)
        [0, 1, 2]
    """
    chain = []
    while row >= 0:
        chain.append(row)
        row = around(row)
    return chain[::-1]


def innermost_around(modules: Sequence[Module], some: Iterable[int]) -> int:
    """The innermost module that is or encloses each of some, -1 for none."""
    chains = (enclosing(modules, module) for module in some)
    shared = [level[0] for level in zip(*chains, strict=False) if len(set(level)) == 1]
    return shared[-1] if shared else -1
