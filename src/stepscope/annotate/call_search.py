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

from collections.abc import Sequence
from math import inf, log2
from typing import NamedTuple

from stepscope.annotate.module_parts import Part

# Costs, relative to one operator that certainly is a module's but that none claims.
_UNCLAIMED, _UNCLAIMED_UNSURE = 1.0, 0.2
_OUT_OF_TURN = 0.05  # for each doubling of what is passed over
_AFAR = 0.02
_MISFIT = 0.3
_WIDTH = 5  # explanations kept for each position
# How much worse than the best an explanation may be: more where little does not explain it well,
# that is by less than so much an operator; but not in a row so long that it would take its time.
_NARROW, _WIDE = 0.5, 1.5
_WELL, _LONGEST_WIDE = 0.03, 300
_ENDINGS = 4  # explanations of different length kept for one call
_REACH, _FURTHER = 2, 8  # a repeated module runs at most this many times what is expected, and more


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


_Key = tuple[int, int, tuple[int, ...], float]
_LEAF_CALL = Call(0.0, 1, None)


class _Frontier:
    """The partial explanations of one call, by how many operators they explain."""

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self._states = {0: [_State(0.0, 0, None, False)]}
        self._lowest = {0: 0.0}

    def __bool__(self) -> bool:
        return bool(self._states)

    def add(self, offset: int, state: _State) -> None:
        self._states.setdefault(offset, []).append(state)
        self._lowest[offset] = min(self._lowest.get(offset, inf), state.cost)

    def lowest(self, offset: int) -> float:
        return self._lowest.get(offset, inf)

    def take(self, offset: int) -> list[_State]:
        """The few best that reach so far and are not much worse than any that reaches farther.

        Of those that called the same children only the best is kept.
        """
        kept: dict[tuple[int, bool], _State] = {}
        if offset in self._states:
            limit = min(self._lowest.values()) + self._slack
            for state in sorted(self._states.pop(offset), key=_cost):
                if state.cost > limit or len(kept) == _WIDTH:
                    break
                kept.setdefault((state.called, state.ends_in_call), state)
            del self._lowest[offset]
        return list(kept.values())


class Search:
    """The search through one trace; what it finds for one run of operators it remembers.

    Args:
        sure: bits of the roles whose operators certainly are a module's.
        sizes: bits of all sizes.
    """

    def __init__(self, sure: int, sizes: int) -> None:
        self._sure = sure
        self._sizes = sizes
        self._slack = _NARROW
        self._tokens: tuple[int, ...] = ()
        self._known: dict[_Key, list[Call]] = {}
        self._children: dict[tuple[int, int, int], list[tuple[int, float]]] = {}

    def explain(self, root: Part, tokens: Sequence[int]) -> Call:
        """The cheapest calls of the root's children that explain all operators.

        Args:
            root: a part that stands for no module, above the tree's roots.
            tokens: for each operator the bits of the roles that it may play, and of the sizes of
                the parameters that it may work on, where known.

        Returns:
            A call as long as `tokens`.
        """
        self._tokens = tuple(tokens)
        narrow = self._explain(root, _NARROW)
        if narrow.cost <= _WELL * len(tokens) or len(tokens) > _LONGEST_WIDE:
            return narrow
        return min(narrow, self._explain(root, _WIDE), key=_cost)

    def _explain(self, root: Part, slack: float) -> Call:
        self._slack = slack
        self._known = {key: calls for key, calls in self._known.items() if key[1] < 0}
        tokens, end = self._tokens, len(self._tokens)
        frontier = _Frontier(slack)
        for offset in range(end):
            for state in frontier.take(offset):
                # Nothing is worth leaving out much at the beginning, once all of it is explained.
                limit = frontier.lowest(end)
                if state.cost < (limit if state.inner else min(limit, slack)) or limit == inf:
                    self._skip(frontier, state, offset, tokens[offset])
                    self._call(frontier, state, offset, root, 0, end)
        best = frontier.take(end)[0]
        return Call(best.cost, end, best.inner)

    def _calls(self, part: Part, start: int, end: int) -> list[Call]:
        """The best ways to explain what follows `start`, whose operator the part may claim."""
        if part.is_leaf:
            return [_LEAF_CALL]
        key: _Key = (part.shape, start, (), self._slack)
        if part.alike > 1:
            end = min(end, start + _REACH * part.expected + _FURTHER)
            key = (part.shape, -1, self._tokens[start:end], self._slack)
        if key not in self._known:
            self._known[key] = self._branch(part, start, end)
        return self._known[key]

    def _branch(self, part: Part, start: int, end: int) -> list[Call]:
        frontier = _Frontier(self._slack)
        calls: dict[int, Call] = {}
        cheapest = inf
        for offset in range(end - start + 1):
            for state in frontier.take(offset):
                if state.ends_in_call:
                    call = Call(state.cost + _absence(part, state.called), offset, state.inner)
                    calls[offset] = min(calls.get(offset, call), call, key=_cost)
                    cheapest = min(cheapest, call.cost)
                if start + offset < end and state.cost <= cheapest + self._slack:
                    self._own(frontier, state, offset, part, self._tokens[start + offset])
                    self._call(frontier, state, offset, part, start, end)
            if not frontier:
                break
        best = sorted(calls.values(), key=_cost)[:_ENDINGS]
        return [call for call in best if call.cost <= cheapest + self._slack]

    def _own(self, frontier: _Frontier, state: _State, offset: int, part: Part, token: int) -> None:
        """The next operator is the branch's own, by its class or for want of a better place."""
        if token & part.own:
            frontier.add(offset + 1, state._replace(ends_in_call=True))
        elif offset:
            self._skip(frontier, state, offset, token)

    def _skip(self, frontier: _Frontier, state: _State, offset: int, token: int) -> None:
        cost = state.cost + (_UNCLAIMED if token & self._sure else _UNCLAIMED_UNSURE)
        frontier.add(offset + 1, _State(cost, state.called, state.inner, False))

    def _call(
        self, frontier: _Frontier, state: _State, offset: int, part: Part, start: int, end: int
    ) -> None:
        """The next operators are a child's: any child, and any run that it explains well."""
        token = self._tokens[start + offset]
        for number, extra in self._candidates(part, state.called, token):
            for call in self._calls(part.children[number], start + offset, end):
                frontier.add(
                    offset + call.length,
                    _State(
                        state.cost + extra + call.cost,
                        state.called | 1 << number,
                        Inner(offset, number, call, state.inner),
                        True,
                    ),
                )

    def _candidates(self, part: Part, called: int, token: int) -> list[tuple[int, float]]:
        key = (part.shape, called, token)
        if key not in self._children:
            self._children[key] = _candidates(part, called, token, token & self._sizes)
        return self._children[key]


def _candidates(part: Part, called: int, token: int, sizes: int) -> list[tuple[int, float]]:
    """Children that may claim the operator, one of each shape, and what calling each costs."""
    offered: dict[int, tuple[int, float]] = {}
    passed = 0.0
    for number, child in enumerate(part.children):
        if not called >> number & 1:
            if child.all & token:
                # All parts of one shape run one code, so its order counts once.
                turn = _OUT_OF_TURN * log2(1 + passed) / part.alike
                offered.setdefault(child.shape, (number, turn + _misfit(child, sizes)))
            passed += child.absence
    # The nearer the first call, the likelier another one: in the smaller block.
    afar = _AFAR * (1 - 1 / max(part.expected, 1))
    for number, child in reversed(list(enumerate(part.children))):
        if child.all & token and called >> number & 1:
            again = child.again + afar + _misfit(child, sizes)
            offered.setdefault(child.shape, (number, again))
    return list(offered.values())


def _misfit(child: Part, sizes: int) -> float:
    """What it costs a leaf to claim an operator on parameters of the size of another's."""
    return _MISFIT if child.size and sizes and not child.size & sizes else 0.0


def _absence(part: Part, called: int) -> float:
    """What it costs that some children are not called."""
    return sum(
        child.absence for number, child in enumerate(part.children) if not called >> number & 1
    )


def _cost(found: Call | _State) -> float:
    return found.cost
