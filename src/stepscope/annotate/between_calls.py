"""Who runs the operators between those that tell a leaf: the leaf, the block, or what is around.

A call's own operators are the same each time, what surrounds it is not. So a leaf that runs more
than the operator it is told by (`LlamaRMSNorm`: pow, mean, add, *rsqrt*, mul) owns what all calls of
its class have in common on each side. The rest belongs to the innermost call that is around both
neighbours; where that is a mere container, or calls one block after another, to the block that ends
there (a residual add).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.annotate.call_search import Call, Part
from stepscope.annotate.operator_names import CONTAINERS, role_of

_NOBODY = -1


@dataclass
class Calls:
    """The calls that explain a row of operators, a call before those inside it.

    Attributes:
        module: the module of each call; that of the first, around all, is -1.
        outer: the call around each.
        claimed: the call of each telling operator.
    """

    module: list[int] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, root: Part, call: Call) -> Calls:
        """Unfold what the search found."""
        calls = cls(claimed=[0] * call.length)
        calls._add(root, call, 0, _NOBODY)
        return calls

    def _add(self, part: Part, call: Call, start: int, outer: int) -> None:
        number = len(self.module)
        self.module.append(part.module)
        self.outer.append(outer)
        self.claimed[start : start + call.length] = [number] * call.length
        inner, pending = call.inner, []
        while inner:
            pending.append(inner)
            inner = inner.before
        for one in reversed(pending):
            self._add(part.children[one.child], one.call, start + one.offset, number)

    def chain(self, call: int) -> list[int]:
        """A call and all around it, outermost first."""
        found = []
        while call >= 0:
            found.append(call)
            call = self.outer[call]
        return found[::-1]


@dataclass
class _Gap:
    """A run of untelling operators, from `first` up to `end`, between two calls."""

    first: int
    end: int
    before: int
    after: int


def owners(
    calls: Calls, telling: Sequence[int], names: Sequence[str], classes: Sequence[str]
) -> list[int]:
    """The call that runs each operator of a row.

    Args:
        calls: those found for the telling operators.
        telling: positions of these among `names`, ascending.
        names: names of the row's operators.
        classes: class of each module of the tree.

    Returns:
        A call for each name; call 0, which stands for no module, where it lies outside all.
    """
    found = [0] * len(names)
    for position, call in zip(telling, calls.claimed, strict=True):
        found[position] = call
    gaps = _gaps(calls, telling, len(names))
    _give_helpers(gaps, found, calls, names, classes)
    _give_common(gaps, found, calls, names, classes)
    for gap in gaps:
        found[gap.first : gap.end] = [_between(gap, calls, classes)] * (gap.end - gap.first)
    return found
