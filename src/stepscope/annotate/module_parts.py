"""A model tree as the search for calls sees it: which roles of operators each module asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.annotate.module_evidence import Module
from stepscope.annotate.operator_names import FUNCTIONAL, role_around, role_of
from stepscope.annotate.roles import Roles, class_name, roles_of

# Costs, relative to one operator that certainly is a module's but that none claims.
NOT_CALLED, NOT_CALLED_UNSURE = 1.0, 0.1
AGAIN, AGAIN_UNSURE, BLOCK_AGAIN = 0.8, 0.15, 0.4
# A module that is not called at all is likelier than one that is called in part.
_WHOLE_ABSENCE = 0.75


@dataclass(eq=False)
class Part:
    """A module as the search sees it.

    Attributes:
        module: its index in the tree.
        own: bits of the roles of operators that it runs itself.
        all: those of all below it too.
        children: the modules directly below it.
        is_leaf: it runs one such operator a call.
        size: the bit that operators with a leaf's own number of parameters have, or 0.
        expected: operators that a call of it runs, if each leaf runs one.
        absence: what it costs not to call it.
        again: what it costs to call it once more.
        shape: a number that parts have in common which look the same to the search.
        alike: how many parts have this shape.
    """

    module: int
    own: int
    all: int
    children: tuple[Part, ...]
    is_leaf: bool
    size: int
    expected: int
    absence: float
    again: float
    shape: int
    alike: int = 1


def root_part(modules: Sequence[Module], roles: Roles) -> Part:
    """The tree as parts, below one part (module -1) that stands for everything.

    Args:
        modules: parents before children.
        roles: those that the modules play.
    """
    children: dict[int, list[Part]] = {}
    shapes: dict[object, int] = {}
    for index in reversed(range(len(modules))):
        inner = tuple(reversed(children.pop(index, [])))
        part = _part(index, modules[index], inner, roles, shapes)
        children.setdefault(modules[index].parent, []).append(part)
    root = _branch(-1, 0, tuple(reversed(children.get(-1, []))), shapes)
    _count_alike(root)
    return root


def _part(
    index: int, module: Module, children: tuple[Part, ...], roles: Roles, shapes: dict[object, int]
) -> Part:
    if not children:
        return _leaf(index, module, roles, shapes)
    name = class_name(module)
    if name in FUNCTIONAL:
        return _branch(index, roles.of(roles_of(name)), (), shapes, NOT_CALLED)
    around = role_around(name)
    own = roles.of([around]) if around else 0
    taken = any(child.all & own for child in children)
    return _branch(index, 0 if taken else own, children, shapes)


def _leaf(index: int, module: Module, roles: Roles, shapes: dict[object, int]) -> Part:
    bits = roles.of([role_of(class_name(module))])
    size = roles.size(module)
    sure = bool(bits & roles.sure)
    return Part(
        module=index,
        own=bits,
        all=bits,
        children=(),
        is_leaf=True,
        size=size,
        expected=bits != 0,
        absence=NOT_CALLED if sure else NOT_CALLED_UNSURE,
        again=AGAIN if sure else AGAIN_UNSURE,
        shape=shapes.setdefault((bits, size), len(shapes)),
    )


def _branch(
    index: int,
    own: int,
    children: tuple[Part, ...],
    shapes: dict[object, int],
    absence: float = 0.0,
) -> Part:
    below = own
    for child in children:
        below |= child.all
    inner = sum(child.absence for child in children)
    return Part(
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


def _count_alike(root: Part) -> None:
    parts = [root]
    for part in parts:
        parts.extend(part.children)
    counts = Counter(part.shape for part in parts)
    for part in parts:
        part.alike = counts[part.shape]
