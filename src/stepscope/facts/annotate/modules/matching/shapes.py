"""The model tree as the aligner sees it: the operator roles of each module, and costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from stepscope.facts.annotate.module_evidence import Module
from stepscope.facts.annotate.modules.matching.roles import (
    FUNCTIONAL,
    Roles,
    class_name,
    role_around,
    role_of,
    roles_of,
)

# Costs, relative to one operator that certainly belongs to a module but is unclaimed.
_NOT_CALLED, _NOT_CALLED_UNSURE = 1.0, 0.1
_DOUBTFUL = 0.05  # to call a leaf that may not exist
_AGAIN, _AGAIN_UNSURE, BLOCK_AGAIN = 0.8, 0.15, 0.4  # to call a leaf, or a block, once more
Kind = tuple[str, int]
Kinds = tuple[Kind, tuple[Kind, ...]]


@dataclass(eq=False)
class ModuleShape:
    """A module as the aligner sees it.

    Attributes:
        module: index in the tree.
        kind: the name of its class, and of a leaf the bit of its size.
        kinds: its own kind and those of its children.
        own: bits of the roles of operators that it runs itself.
        all: the same including all descendants.
        children: its child modules.
        shape: a number shared by modules that look the same to the aligner.
        absence: of a leaf the cost of not calling it.
        again: of a leaf the cost of calling it once more.
        call: of a leaf the cost of calling it at all.
        is_leaf: whether each call runs one such operator.
    """

    module: int
    kind: Kind
    own: int
    all: int
    children: tuple[ModuleShape, ...]
    shape: int
    absence: float = 0.0
    again: float = 0.0
    call: float = 0.0
    is_leaf: bool = False

    @cached_property
    def kinds(self) -> Kinds:
        return self.kind, tuple(child.kind for child in self.children)

    def fits_size(self, sizes: int) -> bool:
        """Whether it may run an operator of some sizes; unknown sizes fit."""
        return not (sizes and self.kind[1]) or bool(self.kind[1] & sizes)


def root_shape(modules: Sequence[Module], roles: Roles, doubtful: Collection[int] = ()) -> ModuleShape:
    """The tree as shapes, below a root (module -1) that stands for the whole model."""
    children: dict[int, list[ModuleShape]] = {}
    shapes: dict[object, int] = {}
    for index in reversed(range(len(modules))):
        inner = tuple(reversed(children.pop(index, [])))
        part = _part(index, modules[index], inner, roles, shapes, index in doubtful)
        children.setdefault(modules[index].parent, []).append(part)
    return _branch(-1, "", 0, tuple(reversed(children.get(-1, []))), shapes)


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
        part = _branch(index, name, roles.of(roles_of(name)), (), shapes)
        part.absence, part.again = _NOT_CALLED, BLOCK_AGAIN
        return part
    around = role_around(name)
    own = roles.of([around]) if around else 0
    taken = any(child.all & own for child in children)
    return _branch(index, name, 0 if taken else own, children, shapes)


def _leaf(index: int, module: Module, roles: Roles, shapes: dict[object, int], doubtful: bool) -> ModuleShape:
    name = class_name(module)
    bits, size = roles.of([role_of(name)]), roles.size(module)
    sure = bool(bits & roles.sure)
    shape = shapes.setdefault((bits, size, doubtful), len(shapes))
    return ModuleShape(
        index,
        (name, size),
        bits,
        bits,
        (),
        shape,
        absence=_NOT_CALLED if sure and not doubtful else _NOT_CALLED_UNSURE,
        again=_AGAIN if sure else _AGAIN_UNSURE,
        call=_DOUBTFUL * doubtful,
        is_leaf=True,
    )


def _branch(
    index: int, name: str, own: int, children: tuple[ModuleShape, ...], shapes: dict[object, int]
) -> ModuleShape:
    below = own
    for child in children:
        below |= child.all
    shape = shapes.setdefault((own, tuple(child.shape for child in children)), len(shapes))
    return ModuleShape(index, (name, 0), own, below, children, shape)
