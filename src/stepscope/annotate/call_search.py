"""Which calls of a tree's modules best explain a row of operators.

A tree lists modules in the order in which they were registered; a forward pass calls them in
another, leaves some out and calls some twice. So a module's children are looked for in any order,
each as a contiguous run of operators, and what does not fit costs: a module that is not called, an
operator that no module claims, a module called again, a child out of turn. The cheapest explanation
is found by dynamic programming over positions in the row, bounded to the few best at each; modules
of one shape share what was found for one run of operators, so that the layers of a deep model, and
the steps of a long trace, cost hardly more than one.

Source: HOTLINE section 4.3, which takes the leaves in the tree's order in one greedy pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

# Costs, relative to one operator that certainly is a module's but that none claims.
UNCLAIMED, UNCLAIMED_UNSURE = 1.0, 0.2
NOT_CALLED, NOT_CALLED_UNSURE = 1.0, 0.1
AGAIN, AGAIN_UNSURE = 0.8, 0.15
OUT_OF_TURN = 0.02
_WIDTH = 6  # explanations kept for each position
_SLACK = 2.0  # how much worse than the best an explanation may be
_ENDINGS = 4  # explanations of different length kept for one call
_REACH, _FURTHER = 2, 8  # a repeated module runs at most this many times what is expected, and more


@dataclass(eq=False)
class Part:
    """A module as the search sees it.

    Attributes:
        module: its index in the tree.
        own: bits of the roles of operators that it runs itself.
        all: those of all below it too.
        children: the modules directly below it.
        is_leaf: it runs one such operator a call.
        expected: operators that a call of it runs, if each leaf runs one.
        absence: what it costs not to call it.
        again: what it costs to call it once more.
        shape: a number that parts have in common which look the same to the search.
        is_repeated: whether there are several of this shape.
    """

    module: int
    own: int
    all: int
    children: tuple[Part, ...]
    is_leaf: bool
    expected: int
    absence: float
    again: float
    shape: int
    is_repeated: bool = False


class Call(NamedTuple):
    """One way to explain a run of operators: a call, and the calls inside it, last first."""

    cost: float
    length: int
    inner: Inner | None


class Inner(NamedTuple):
    """A call inside another: how far from its start, of which child, and what was before it."""

    offset: int
    child: int
    call: Call
    before: Inner | None


class _State(NamedTuple):
    """A partial explanation: which children have been called (as bits), and how."""

    cost: float
    called: int
    inner: Inner | None
    ends_in_call: bool


_Frontier = dict[int, list[_State]]
_LEAF_CALL = Call(0.0, 1, None)


class Search:
    """The search through one trace; what it finds for one run of operators it remembers.

    Args:
        sure: bits of the roles whose operators certainly are a module's.
    """

    def __init__(self, sure: int) -> None:
        self._sure = sure
        self._tokens: tuple[int, ...] = ()
        self._known: dict[tuple[int, int, tuple[int, ...]], list[Call]] = {}

    def explain(self, root: Part, tokens: Sequence[int]) -> Call:
        """The cheapest calls of the root's children that explain all operators.

        Args:
            root: a part that stands for no module, above the tree's roots.
            tokens: for each operator the bits of the roles that it may play.

        Returns:
            A call as long as `tokens`.
        """
        self._tokens = tuple(tokens)
        self._known = {key: calls for key, calls in self._known.items() if key[1] < 0}
        end = len(tokens)
        frontier: _Frontier = {0: [_State(0.0, 0, None, False)]}
        for offset in range(end):
            for state in _best(frontier.pop(offset, [])):
                done = min((other.cost for other in frontier.get(end, ())), default=inf)
                if state.cost < done:
                    self._skip(offset, state, frontier)
                    self._call(root, 0, end, offset, state, frontier)
        best = _best(frontier[end])[0]
        return Call(best.cost, end, best.inner)

    def _calls(self, part: Part, start: int, end: int) -> list[Call]:
        """The best ways to explain what follows `start`, whose operator the part may claim."""
        if part.is_leaf:
            return [_LEAF_CALL]
        key = (part.shape, start, ())
        if part.is_repeated:
            end = min(end, start + _REACH * part.expected + _FURTHER)
            key = (part.shape, -1, self._tokens[start:end])
        if key not in self._known:
            self._known[key] = self._branch(part, start, end)
        return self._known[key]

    def _branch(self, part: Part, start: int, end: int) -> list[Call]:
        frontier: _Frontier = {0: [_State(0.0, 0, None, False)]}
        calls: dict[int, Call] = {}
        cheapest = inf
        for offset in range(end - start + 1):
            for state in _best(frontier.pop(offset, [])):
                if state.ends_in_call:
                    call = Call(state.cost + _absence(part, state.called), offset, state.inner)
                    calls[offset] = min(calls.get(offset, call), call, key=_cost)
                    cheapest = min(cheapest, call.cost)
                if start + offset < end and state.cost <= cheapest + _SLACK:
                    self._own(part, start, offset, state, frontier)
                    self._call(part, start, end, offset, state, frontier)
            if not frontier:
                break
        best = sorted(calls.values(), key=_cost)[:_ENDINGS]
        return [call for call in best if call.cost <= cheapest + _SLACK]

    def _own(self, part: Part, start: int, offset: int, state: _State, frontier: _Frontier) -> None:
        """The next operator is the branch's own, by its class or for want of a better place."""
        if self._tokens[start + offset] & part.own:
            frontier.setdefault(offset + 1, []).append(state._replace(ends_in_call=True))
        elif offset:
            self._skip(offset, state, frontier, start)

    def _skip(self, offset: int, state: _State, frontier: _Frontier, start: int = 0) -> None:
        sure = self._tokens[start + offset] & self._sure
        cost = state.cost + (UNCLAIMED if sure else UNCLAIMED_UNSURE)
        frontier.setdefault(offset + 1, []).append(_State(cost, state.called, state.inner, False))

    def _call(
        self, part: Part, start: int, end: int, offset: int, state: _State, frontier: _Frontier
    ) -> None:
        """The next operators are a child's: any child, and any run that it explains well."""
        token = self._tokens[start + offset]
        for number, extra in _candidates(part, state.called, token):
            for call in self._calls(part.children[number], start + offset, end):
                cost = state.cost + extra + call.cost
                inner = Inner(offset, number, call, state.inner)
                after = _State(cost, state.called | 1 << number, inner, True)
                frontier.setdefault(offset + call.length, []).append(after)


def _candidates(part: Part, called: int, token: int) -> Iterator[tuple[int, float]]:
    """Children that may claim the operator, one of each shape, and what calling each costs."""
    offered: set[int] = set()
    turn = 0.0
    for number, child in enumerate(part.children):
        if called >> number & 1:
            continue
        if child.all & token and child.shape not in offered:
            offered.add(child.shape)
            yield number, turn
        if child.all:
            turn = OUT_OF_TURN
    for number in reversed(range(len(part.children))):
        child = part.children[number]
        if called >> number & 1 and child.all & token and child.shape not in offered:
            offered.add(child.shape)
            # The nearer the first call, the likelier: in the smaller block.
            yield number, child.again + OUT_OF_TURN * (1 - 1 / part.expected)


def _absence(part: Part, called: int) -> float:
    """What it costs that some children are not called."""
    return sum(
        child.absence for number, child in enumerate(part.children) if not called >> number & 1
    )


def _best(states: list[_State]) -> list[_State]:
    """The few cheapest, and of those that called the same children only the cheapest."""
    kept: dict[tuple[int, bool], _State] = {}
    states.sort(key=_cost)
    for state in states:
        if state.cost > states[0].cost + _SLACK or len(kept) == _WIDTH:
            break
        kept.setdefault((state.called, state.ends_in_call), state)
    return list(kept.values())


def _cost(found: Call | _State) -> float:
    return found.cost
