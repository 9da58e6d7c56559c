"""Operator roles of the modules of one tree, and the operators of one trace that play them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import Any

from stepscope.annotate.module_evidence import Module
from stepscope.annotate.modules.matching.leaf_operators import (
    FUNCTIONAL,
    Role,
    plain,
    role_around,
    role_of,
)


class Roles:
    """The roles of a tree's modules, each with a bit, and the operators that play them.

    Args:
        modules: of a model tree.
        operators: names of the trace's operators and kernels, as recorded.
        backward: whether these are gradient nodes.
    """

    def __init__(
        self, modules: Sequence[Module], operators: Iterable[str], backward: bool = False
    ) -> None:
        roles = {role for module in modules for role in roles_of(class_name(module))}
        self._bits = {role: 1 << number for number, role in enumerate(sorted(roles, key=repr))}
        names = {name: plain(name) for name in operators}
        self._patterns = {role: _pattern(role, names.values(), backward) for role in roles}
        self.sure = self.of(role for role in roles if role.sure)
        self._sizes: dict[tuple[int, int], int] = {}
        for module in modules:
            self._add_size(module)
        self._known = {name: self._find_bits(text) for name, text in names.items()}

    def of(self, roles: Iterable[Role]) -> int:
        """The bits of several roles."""
        return sum({self._bits[role] for role in roles})

    def size(self, module: Module) -> int:
        """The bit of a leaf's role and number of parameters; 0 if unknown."""
        return self._sizes.get(self._size(module), 0)

    def sizes_of(self, bits: int, shapes: Iterable[Any]) -> int:
        """The bits of leaf sizes that match the inputs of an operator.

        Args:
            bits: the roles that it may play.
            shapes: of its inputs, as `record_shapes` records them.
        """
        counts = [prod(shape) for shape in shapes if shape and all(type(n) is int for n in shape)]
        sums = {*counts, *map(sum, combinations(counts, 2))}
        found = (bit for (role, size), bit in self._sizes.items() if role & bits and size in sums)
        return sum(found)

    @property
    def all_sizes(self) -> int:
        """All bits of sizes."""
        return sum(self._sizes.values())

    def _add_size(self, module: Module) -> None:
        role, count = self._size(module)
        if role & self.sure and count > 0:
            bit = 1 << (len(self._bits) + len(self._sizes))
            self._sizes.setdefault((role, count), bit)

    def _size(self, module: Module) -> tuple[int, int]:
        count = module.facts.get("parameters")
        return self.of([role_of(class_name(module))]), count if isinstance(count, int) else -1

    def bits_of(self, name: str) -> int:
        """The bits of the roles that an operator or a kernel of this name may play."""
        return self._known.get(name, 0)

    def _find_bits(self, text: str) -> int:
        return self.of(role for role, pattern in self._patterns.items() if pattern.search(text))


def _pattern(role: Role, names: Iterable[str], backward: bool) -> re.Pattern[str]:
    """The pattern of a role in this trace: its whole operator, or a part if there is none."""
    whole = re.compile(f"{role.whole}|{role.node}" if backward else role.whole)
    if not role.part or any(whole.search(name) for name in names):
        return whole
    return re.compile(role.part)


def class_name(module: Module) -> str:
    """The class name of a module, unqualified."""
    return module.kind.rpartition(".")[2]


def roles_of(name: str) -> list[Role]:
    """The roles that a module of this class may play."""
    roles = [role_of(role) for role in FUNCTIONAL.get(name, (name,))]
    around = role_around(name)
    return [*roles, around] if around else roles
