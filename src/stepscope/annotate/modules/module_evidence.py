"""Modules that a trace identifies, and the events that are calls of them.

Five kinds of evidence, the best first: the ranges that a stepscope capture writes, the `nn.Module`
frames of torch.profiler's Python stacks, the named scopes of compiled operations or the stacks in
which they were traced (`traced_modules`), and a model tree given in addition to the trace
(`matching`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from stepscope.annotate.names.named_scopes import scope_of
from stepscope.annotate.names.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.arrays import Ids, Ids32, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_INSTANCE = re.compile(r"_\d+$")


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


def from_ranges(trace: Trace) -> Evidence | None:
    """Modules from the ranges of a capture, with facts from its model tree."""
    names = trace.events.text("name")
    calls = names.where(lambda name: name.startswith(MODULE_RANGE))
    if not calls.any() and not trace.metadata.properties.get("compiled"):
        return None
    modules = tree_modules(trace.metadata.model)
    number = {module.path: index for index, module in enumerate(modules)}
    for path in sorted({_path_of(name) for name in names.take(calls) if name}):
        _add_path(path, modules, number)
    code = [
        number.get(_path_of(value), -1) if value.startswith(MODULE_RANGE) else -1
        for value in names.values
    ]
    return Evidence("ranges", modules, np.array([*code, -1], np.int32)[names.codes])


def _path_of(name: str) -> str:
    return name[len(MODULE_RANGE) :].strip()


def _add_path(path: str, modules: list[Module], number: dict[str, int]) -> int:
    if path not in number:
        above, _, name = path.rpartition(".")
        parent = _add_path(above, modules, number) if path else -1
        number[path] = len(modules)
        modules.append(Module(path, name, "", parent))
    return number[path]


def from_frames(trace: Trace) -> Evidence | None:
    """Modules from `nn.Module: Class_3` frames, which number the instances of each class.

    The parent of an instance is the instance that encloses most of its calls. A call without an
    enclosing one, as when checkpointing repeats a module in backward, is the same instance.
    """
    events = trace.events
    names = events.text("name")
    frame = names.where(lambda name: name.startswith(MODULE_FRAME))
    frame &= events.text("category").mask("python")
    if not frame.any():
        return None
    call_of = np.where(frame, names.codes, -1).astype(np.int32)
    around = np.where(
        events["parent"] >= 0, inherit(events["parent"], call_of)[events["parent"]], -1
    )
    pairs = Counter(zip(call_of[frame].tolist(), around[frame].tolist(), strict=True))
    modules, number = _tree_of_instances(names.values, pairs)
    table = np.full(len(names.values) + 1, -1, np.int32)
    for code, index in number.items():
        table[code] = index
    return Evidence("nn_module", modules, table[call_of])


def from_scopes(trace: Trace) -> Evidence | None:
    """Modules from the named scopes of compiled operations, for a model and its loss.

    The number of calls of a module is that of its most frequent operation.
    """
    events = trace.events
    text = events.text("scope")
    passes = [STAGES.index(stage) for stage in (*FORWARD_STAGES, "backward")]
    scoped = (text.codes >= 0) & np.isin(events["stage"], passes)
    if not scoped.any():
        return None
    modules: list[Module] = []
    number: dict[tuple[str, ...], int] = {}
    module_of = [-1] * len(text.values)
    for code in _in_order(events, scoped):
        module_of[code] = _add_scope(scope_of(text.values[code]).modules, modules, number)
    call_of = np.where(scoped, np.array([*module_of, -1], np.int32)[text.codes], -1)
    if not modules:
        return None
    calls = most_repeated(events, call_of, modules)
    of_origin = partial(_innermost, number)
    return Evidence("scopes", modules, call_of.astype(np.int32), calls, True, of_origin)


def _innermost(number: Mapping[tuple[str, ...], int], scope: str, frame: int) -> int:
    """The innermost known module of a scope."""
    names = scope_of(scope).modules
    return next((number[names[:n]] for n in range(len(names), 0, -1) if names[:n] in number), -1)


def _in_order(events: Table, scoped: Mask) -> list[int]:
    """Codes of the scopes of some events, in order of the forward pass, then of the rest."""
    rows = np.flatnonzero(scoped)
    rows = rows[np.argsort(events["stage"][rows] == STAGES.index("backward"), kind="stable")]
    codes, first = np.unique(events["scope"][rows], return_index=True)
    order: list[int] = codes[np.argsort(first)].tolist()
    return order


def _add_scope(
    scope: tuple[str, ...], modules: list[Module], number: dict[tuple[str, ...], int]
) -> int:
    """The index of the module of a scope, -1 for the root; adds enclosing modules first."""
    if not scope:
        return -1
    if scope not in number:
        parent = _add_scope(scope[:-1], modules, number)
        number[scope] = len(modules)
        modules.append(Module(".".join(scope), scope[-1], _INSTANCE.sub("", scope[-1]), parent))
    return number[scope]


def most_repeated(events: Table, call_of: Ids32, modules: list[Module]) -> Ids:
    """The count of the most frequent forward operation of each module.

    A module without operations of its own counts like its most called child.
    """
    rows = np.flatnonzero((call_of >= 0) & (events["stage"] != STAGES.index("backward")))
    names = np.int64(events["name"].max(initial=0) + 1)
    keys, times = np.unique(call_of[rows] * names + events["name"][rows], return_counts=True)
    own = np.zeros(len(modules), np.int64)
    np.maximum.at(own, keys // names, times)
    result = own.copy()
    for number, module in reversed(list(enumerate(modules))):
        if module.parent >= 0 and not own[module.parent]:
            result[module.parent] = max(result[module.parent], result[number])
    return result


def _tree_of_instances(
    names: Any, pairs: Counter[tuple[int, int]]
) -> tuple[list[Module], dict[int, int]]:
    """Modules from (instance, instance around it) counts, parents before children."""
    parent: dict[int, int] = {}
    for (code, outer), _ in sorted(pairs.items(), key=lambda item: (item[0][1] < 0, -item[1])):
        if code not in parent and not _is_below(outer, code, parent):
            parent[code] = outer
    modules: list[Module] = []
    number: dict[int, int] = {}

    def add(code: int) -> int:
        if code not in number:
            outer = add(parent[code]) if parent.get(code, -1) >= 0 else -1
            name = names[code][len(MODULE_FRAME) :]
            path = f"{modules[outer].path}.{name}" if outer >= 0 else name
            number[code] = len(modules)
            modules.append(Module(path, name, name.rpartition("_")[0] or name, outer))
        return number[code]

    for code in sorted(parent):
        add(code)
    return modules, number


def _is_below(code: int, ancestor: int, parent: Mapping[int, int]) -> bool:
    """Whether `code` is `ancestor` or inside it, as known so far: parents must not form a cycle."""
    while code >= 0:
        if code == ancestor:
            return True
        code = parent.get(code, -1)
    return False


def tree_modules(tree: Mapping[str, Any]) -> list[Module]:
    """The modules of a model tree in pre-order.

    Args:
        tree: `{"roots": [...]}` as a capture has it, or one root; a node is
            `{"name", "class", "path"?, "children": [...]}` with any further facts.

    Returns:
        Modules with `parent` as an index into the list; empty for an empty tree.
    """
    modules: list[Module] = []
    stack = [(root, -1) for root in reversed(_roots(tree))]
    while stack:
        node, parent = stack.pop()
        name = str(node.get("name", ""))
        modules.append(
            Module(_path(node, modules, parent), name, str(node.get("class", "")), parent, node)
        )
        index = len(modules) - 1
        stack += [(child, index) for child in reversed(list(node.get("children", ())))]
    return modules


def _roots(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(tree["roots"]) if "roots" in tree else [tree] if tree else []


def _path(node: Mapping[str, Any], modules: list[Module], parent: int) -> str:
    if "path" in node:
        return str(node["path"])
    if parent < 0:
        return ""
    above = modules[parent].path
    return f"{above}.{node.get('name', '')}" if above else str(node.get("name", ""))
