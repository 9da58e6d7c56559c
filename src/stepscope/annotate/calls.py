"""The calls of modules that were found for one row of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.annotate.call_search import Call, Inner
from stepscope.annotate.module_parts import Part

_NOBODY = -1


@dataclass
class Calls:
    """The calls that explain a row of operators, a call before those inside it.

    Attributes:
        module: the module of each call; that of the first, around all, is -1.
        outer: the call around each.
        runs: whether each runs operators that its class tells.
        claimed: the call of each telling operator.
    """

    module: list[int] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    runs: list[bool] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    _counts: Counter[tuple[int, str]] = field(default_factory=Counter)

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
        self.runs.append(part.own != 0)
        self.claimed[start : start + call.length] = [number] * call.length
        inner = _in_order(call)
        unsure = _undecided(part, {one.child for one in inner})
        for one in inner:
            child = part.children[one.child]
            if child.shape not in unsure:
                self._add(child, one.call, start + one.offset, number)

    def is_branch(self, call: int) -> bool:
        """Whether other calls lie inside this one, or it stands for no module."""
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
        """A call and all around it, outermost first."""
        found = []
        while call >= 0:
            found.append(call)
            call = self.outer[call]
        return found[::-1]


def _in_order(call: Call) -> list[Inner]:
    inner, found = call.inner, []
    while inner:
        found.append(inner)
        inner = inner.before
    return found[::-1]


def _undecided(part: Part, called: set[int]) -> set[int]:
    """Shapes of leaves of which some are called and some not: nothing tells which, so none is."""
    leaves = [(number, child.shape) for number, child in enumerate(part.children) if child.is_leaf]
    silent = {shape for number, shape in leaves if number not in called}
    return {shape for number, shape in leaves if number in called} & silent
