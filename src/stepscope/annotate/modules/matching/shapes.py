"""The model tree as the aligner sees it: the operator roles of each module, and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stepscope.annotate.module_evidence import Module
from stepscope.annotate.modules.matching.roles import (
    FUNCTIONAL,
    Roles,
    class_name,
    role_around,
    role_of,
    roles_of,
)

# Costs, relative to one operator that certainly belongs to a module but is unclaimed.
NOT_CALLED, NOT_CALLED_UNSURE = 1.0, 0.1
_DOUBTFUL = 0.05  # to call a leaf that may not exist
AGAIN, AGAIN_UNSURE, BLOCK_AGAIN = 0.8, 0.15, 0.4
# A module that is skipped as a whole is likelier than one that is called in part.
_WHOLE_ABSENCE = 0.75


@dataclass(eq=False)
class ModuleShape:
    """A module as the search sees it.

    Attributes:
        module: index in the tree.
        own: bits of the roles of operators that it runs itself.
        all: the same including all descendants.
        children: its child modules.
        is_leaf: whether each call runs one such operator.
        size: the bit of operators with the leaf's number of parameters, or 0.
        expected: operators per call, if each leaf runs one.
        absence: the cost of not calling it.
        again: the cost of calling it once more.
        call: the cost of calling it at all.
        shape: a number shared by modules that look the same to the search.
        alike: the number of modules with this shape.
    """

    module: int
    own: int
    all: int
    children: tuple[ModuleShape, ...]
    is_leaf: bool
    size: int
    expected: int
    absence: float
    again: float
    shape: int
    call: float = 0.0
    alike: int = 1


def root_shape(
    modules: Sequence[Module], roles: Roles, doubtful: Collection[int] = ()
) -> ModuleShape:
    """The tree as shapes, below a root (module -1) that stands for the whole model.

    Args:
        modules: parents before children.
        roles: the roles of the modules.
        doubtful: leaves that may not exist.
    """
    children: dict[int, list[ModuleShape]] = {}
    shapes: dict[object, int] = {}
    for index in reversed(range(len(modules))):
        inner = tuple(reversed(children.pop(index, [])))
        part = _part(index, modules[index], inner, roles, shapes, index in doubtful)
        children.setdefault(modules[index].parent, []).append(part)
    root = _branch(-1, 0, tuple(reversed(children.get(-1, []))), shapes)
    _count_alike(root)
    return root


def _part(
    index: int,
    module: Module,
    children: tuple[ModuleShape, ...],
    roles: Roles,
    shapes: dict[object, int],
    doubtful: bool,
) -> ModuleShape:
    if not children:
        return _leaf(index, module, roles, shapes, doubtful)
    name = class_name(module)
    if name in FUNCTIONAL:
        return _branch(index, roles.of(roles_of(name)), (), shapes, NOT_CALLED)
    around = role_around(name)
    own = roles.of([around]) if around else 0
    taken = any(child.all & own for child in children)
    return _branch(index, 0 if taken else own, children, shapes)


def _leaf(
    index: int, module: Module, roles: Roles, shapes: dict[object, int], doubtful: bool
) -> ModuleShape:
    bits = roles.of([role_of(class_name(module))])
    size = roles.size(module)
    sure = bool(bits & roles.sure)
    return ModuleShape(
        module=index,
        own=bits,
        all=bits,
        children=(),
        is_leaf=True,
        size=size,
        expected=bits != 0,
        absence=NOT_CALLED if sure and not doubtful else NOT_CALLED_UNSURE,
        again=AGAIN if sure else AGAIN_UNSURE,
        shape=shapes.setdefault((bits, size, doubtful), len(shapes)),
        call=_DOUBTFUL * doubtful,
    )


def _branch(
    index: int,
    own: int,
    children: tuple[ModuleShape, ...],
    shapes: dict[object, int],
    absence: float = 0.0,
) -> ModuleShape:
    below = own
    for child in children:
        below |= child.all
    inner = sum(child.absence for child in children)
    return ModuleShape(
        module=index,
        own=own,
        all=below,
        children=children,
        is_leaf=False,
        size=0,
        expected=sum(child.expected for child in children) + 4 * bool(own),
        absence=absence + _WHOLE_ABSENCE * inner,
        again=BLOCK_AGAIN,
        shape=shapes.setdefault((own, tuple(child.shape for child in children)), len(shapes)),
    )


def _count_alike(root: ModuleShape) -> None:
    parts = [root]
    for part in parts:
        parts.extend(part.children)
    counts = Counter(part.shape for part in parts)
    for part in parts:
        part.alike = counts[part.shape]
