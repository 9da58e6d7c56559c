"""The module calls found for one sequence of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.annotate.modules.matching.call_search import CallMatch, InnerCall
from stepscope.annotate.modules.matching.leaf_roles import ModuleShape

_NOBODY = -1


@dataclass
class MatchedCalls:
    """The calls that explain a sequence of operators; a call precedes the calls inside it.

    Attributes:
        module: the module of each call; -1 for the first, which encloses all.
        outer: the enclosing call of each.
        runs: whether each runs operators of its own.
        claimed: the call of each identifying operator.
    """

    module: list[int] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    runs: list[bool] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    _counts: Counter[tuple[int, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, root: ModuleShape, call: CallMatch) -> MatchedCalls:
        """Expand the result of the search."""
        calls = cls(claimed=[0] * call.length)
        calls._add(root, call, 0, _NOBODY)
        return calls

    def _add(self, part: ModuleShape, call: CallMatch, start: int, outer: int) -> None:
        number = len(self.module)
        self.module.append(part.module)
        self.outer.append(outer)
        self.runs.append(part.own != 0)
        self.claimed[start : start + call.length] = [number] * call.length
        inner = _in_order(call)
        ambiguous = _ambiguous(part, {found.child for found in inner})
        for found in inner:
            child = part.children[found.child]
            if child.shape not in ambiguous:
                self._add(child, found.call, start + found.offset, number)

    def is_branch(self, call: int) -> bool:
        """Whether other calls are inside this one, or it stands for no module."""
        return call == 0 or (call + 1 < len(self.outer) and self.outer[call + 1] == call)

    def is_repeated(self, call: int, classes: Sequence[str]) -> bool:
        """Whether this is a branch, and the same call has more branches of its class in it."""
        if not self.is_branch(call) or self.module[call] < 0:
            return False
        key = self.outer[call], classes[self.module[call]]
        if not self._counts:
            self._counts = Counter(
                (outer, classes[module])
                for outer, module in zip(self.outer, self.module, strict=True)
                if module >= 0
            )
        return self._counts[key] > 1

    def chain(self, call: int) -> list[int]:
        """A call and its enclosing calls, outermost first."""
        found = []
        while call >= 0:
            found.append(call)
            call = self.outer[call]
        return found[::-1]


def _in_order(call: CallMatch) -> list[InnerCall]:
    inner, found = call.inner, []
    while inner:
        found.append(inner)
        inner = inner.before
    return found[::-1]


def _ambiguous(part: ModuleShape, called: set[int]) -> set[int]:
    """Shapes of leaves of which only some are called: which ones is unknown, so none is chosen."""
    leaves = [(number, child.shape) for number, child in enumerate(part.children) if child.is_leaf]
    not_called = {shape for number, shape in leaves if number not in called}
    return {shape for number, shape in leaves if number in called} & not_called
