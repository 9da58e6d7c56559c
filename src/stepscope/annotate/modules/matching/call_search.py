"""Find the module calls that best explain a sequence of operators.

A tree lists modules in order of registration; a forward pass calls them in another order, skips
some and calls some twice. So the children of a module are searched in any order, each as a
contiguous run of operators, and every mismatch has a cost: a module that is not called, an operator
that no module claims, a repeated call, a child out of order. Dynamic programming over positions in
the sequence finds the cheapest explanation, with a beam of the best few at each position. Modules
of one shape share their results, so the layers of a deep model, and the steps of a long trace, cost
hardly more than one.

Source: HOTLINE section 4.3, which takes the leaves in the tree's order in one greedy pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2
from typing import NamedTuple

from stepscope.annotate.modules.matching.shapes import ModuleShape

# Costs, relative to one operator that certainly belongs to a module but is unclaimed.
UNCLAIMED, UNCLAIMED_UNSURE = 1.0, 0.2
_OUT_OF_ORDER = 0.05  # per doubling of the modules skipped
_DISTANT_REPEAT = 0.02
SIZE_MISMATCH = 0.3
_WIDTH = 5  # explanations kept per position
_NARROW, _WIDE = 0.5, 1.5  # how much more than the best an explanation may cost
_ENDINGS = 4  # explanations of different length kept per call
_REACH, _FURTHER = 2, 8  # a repeated module runs at most 2 * expected + 8 operators


class CallMatch(NamedTuple):
    """One explanation of a run of operators: a call, and the calls inside it, last first."""

    cost: float
    length: int
    inner: InnerCall | None


class InnerCall(NamedTuple):
    """A call inside another: its offset, the number of the child, and the call before it."""

    offset: int
    child: int
    call: CallMatch
    before: InnerCall | None


class _State(NamedTuple):
    """A partial explanation: the children called so far (as bits), and their calls."""

    cost: float
    called: int
    inner: InnerCall | None
    ends_in_call: bool


_Key = tuple[int, int, tuple[int, ...], float]
_LEAF_CALL = CallMatch(0.0, 1, None)


class _Frontier:
    """The partial explanations of one call, by the number of operators they explain."""

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
        """The best few at this offset that are not much worse than any at a later offset.

        Of those with the same called children only the best is kept.
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


class _GaveUpError(Exception):
    """The search takes too long."""


class Search:
    """The search through one trace; results for a run of operators are cached.

    Args:
        sure: bits of the roles whose operators certainly belong to a module.
        sizes: bits of all sizes.
    """

    def __init__(self, sure: int, sizes: int) -> None:
        self._sure = sure
        self._sizes = sizes
        self._slack = _NARROW
        self._effort = inf
        self._tokens: tuple[int, ...] = ()
        self._known: dict[_Key, list[CallMatch]] = {}
        self._children: dict[tuple[int, int, int], list[tuple[int, float]]] = {}

    def explain(
        self,
        root: ModuleShape,
        tokens: Sequence[int],
        wide: bool = False,
        effort: float = inf,
    ) -> CallMatch | None:
        """The cheapest calls of the root's children that explain all operators.

        Args:
            root: a shape without a module, above the roots of the tree.
            tokens: bits of the roles that each operator may play, and of the sizes of the
                parameters that it may work on, if known.
            wide: search further, where little is explained well; slow for a long sequence.
            effort: how many partial explanations to follow before giving up.

        Returns:
            A call as long as `tokens`; None if the effort was not enough.
        """
        self._tokens, self._effort = tuple(tokens), effort
        try:
            return self._explain(root, _WIDE if wide else _NARROW)
        except _GaveUpError:
            return None

    def _explain(self, root: ModuleShape, slack: float) -> CallMatch:
        self._slack = slack
        self._known = {key: calls for key, calls in self._known.items() if key[1] < 0}
        tokens, end = self._tokens, len(self._tokens)
        frontier = _Frontier(slack)
        for offset in range(end):
            for state in frontier.take(offset):
                # Once the whole sequence is explained, skip little at its start.
                limit = frontier.lowest(end)
                if state.cost < (limit if state.inner else min(limit, slack)) or limit == inf:
                    self._skip(frontier, state, offset, tokens[offset])
                    self._call(frontier, state, offset, root, 0, end)
        best = frontier.take(end)[0]
        return CallMatch(best.cost, end, best.inner)

    def _calls(self, part: ModuleShape, start: int, end: int) -> list[CallMatch]:
        """The best explanations of what follows `start`, an operator that `part` may claim."""
        if part.is_leaf:
            return [_LEAF_CALL]
        key: _Key = (part.shape, start, (), self._slack)
        if part.alike > 1:
            end = min(end, start + _REACH * part.expected + _FURTHER)
            key = (part.shape, -1, self._tokens[start:end], self._slack)
        if key not in self._known:
            self._known[key] = self._branch(part, start, end)
        return self._known[key]

    def _branch(self, part: ModuleShape, start: int, end: int) -> list[CallMatch]:
        frontier = _Frontier(self._slack)
        calls: dict[int, CallMatch] = {}
        cheapest = inf
        for offset in range(end - start + 1):
            states = frontier.take(offset)
            self._effort -= len(states)
            if self._effort < 0:
                raise _GaveUpError
            for state in states:
                if state.ends_in_call:
                    call = CallMatch(state.cost + _absence(part, state.called), offset, state.inner)
                    calls[offset] = min(calls.get(offset, call), call, key=_cost)
                    cheapest = min(cheapest, call.cost)
                if start + offset < end and state.cost <= cheapest + self._slack:
                    self._own(frontier, state, offset, part, self._tokens[start + offset])
                    self._call(frontier, state, offset, part, start, end)
            if not frontier:
                break
        best = sorted(calls.values(), key=_cost)[:_ENDINGS]
        return [call for call in best if call.cost <= cheapest + self._slack]

    def _own(
        self, frontier: _Frontier, state: _State, offset: int, part: ModuleShape, token: int
    ) -> None:
        """Give the next operator to the branch itself, by its class or as a fallback."""
        if token & part.own:
            frontier.add(offset + 1, state._replace(ends_in_call=True))
        elif offset:
            self._skip(frontier, state, offset, token)

    def _skip(self, frontier: _Frontier, state: _State, offset: int, token: int) -> None:
        cost = state.cost + (UNCLAIMED if token & self._sure else UNCLAIMED_UNSURE)
        frontier.add(offset + 1, _State(cost, state.called, state.inner, False))

    def _call(
        self,
        frontier: _Frontier,
        state: _State,
        offset: int,
        part: ModuleShape,
        start: int,
        end: int,
    ) -> None:
        """Give the next operators to a child: any child, and any run that it explains well."""
        token = self._tokens[start + offset]
        for number, extra in self._candidates(part, state.called, token):
            for call in self._calls(part.children[number], start + offset, end):
                frontier.add(
                    offset + call.length,
                    _State(
                        state.cost + extra + call.cost,
                        state.called | 1 << number,
                        InnerCall(offset, number, call, state.inner),
                        True,
                    ),
                )

    def _candidates(self, part: ModuleShape, called: int, token: int) -> list[tuple[int, float]]:
        key = (part.shape, called, token)
        if key not in self._children:
            self._children[key] = _candidates(part, called, token, token & self._sizes)
        return self._children[key]


def _candidates(part: ModuleShape, called: int, token: int, sizes: int) -> list[tuple[int, float]]:
    """Children that may claim the operator, one of each shape, with the cost of calling them."""
    offered: dict[int, tuple[int, float]] = {}
    skipped = 0.0
    for number, child in enumerate(part.children):
        if not called >> number & 1:
            if child.all & token:
                # Modules of one shape run the same code, so its order counts once.
                cost = child.call + _size_mismatch(child, sizes)
                cost += _OUT_OF_ORDER * log2(1 + skipped) / part.alike
                offered.setdefault(child.shape, (number, cost))
            skipped += child.absence
    # A repeated call is likelier within a small block.
    distant = _DISTANT_REPEAT * (1 - 1 / max(part.expected, 1))
    for number, child in reversed(list(enumerate(part.children))):
        if child.all & token and called >> number & 1:
            again = child.again + distant + _size_mismatch(child, sizes)
            offered.setdefault(child.shape, (number, again))
    return list(offered.values())


def _size_mismatch(child: ModuleShape, sizes: int) -> float:
    """The cost for a leaf to claim an operator with the parameter size of another leaf."""
    return SIZE_MISMATCH if child.size and sizes and not child.size & sizes else 0.0


def _absence(part: ModuleShape, called: int) -> float:
    """The cost of the children that are not called."""
    return sum(
        child.absence for number, child in enumerate(part.children) if not called >> number & 1
    )


def _cost(found: CallMatch | _State) -> float:
    return found.cost
