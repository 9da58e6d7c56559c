"""Align a sequence of operators with the leaves of a tree in the order of the tree.

The search for calls (`call_search`) follows what a forward pass may do: another order, repeats,
skipped children. Where tree and trace differ, it may take a wrong turn and stay wrong to the end.
An alignment of the whole sequence cannot: a leaf that the tree lacks costs its own operator and
nothing else. It knows one order and hardly any repeats, so it is made only where the search does
not fit, and compared in the same units of cost.

Source: S. B. Needleman, C. D. Wunsch, A general method applicable to the search for similarities
in the amino acid sequence of two proteins, Journal of Molecular Biology 48 (1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from stepscope.annotate.modules.matching.call_search import (
    SIZE_MISMATCH,
    UNCLAIMED,
    UNCLAIMED_UNSURE,
    CallMatch,
    InnerCall,
)
from stepscope.annotate.modules.matching.shapes import ModuleShape
from stepscope.arrays import Codes8, Floats, Mask

_INSIDE_BLOCK = 0.05  # what is skipped likelier begins and ends between blocks than inside one
_AGAIN_OUTSIDE = 0.01  # per block between a repeated leaf and what ran before
_AGAIN_BEFORE = 0.04  # a leaf of the block that follows, which has not run yet
_MOST_CELLS = 200_000_000
_TOKEN, _LEAF, _MATCH = 0, 1, 2
Path = tuple[ModuleShape, ...]


def align(root: ModuleShape, tokens: Sequence[int], sure: int, sizes: int) -> CallMatch | None:
    """The cheapest explanation of the operators by the leaves in order; None if there is none.

    Args:
        root: the shape above the roots of the tree.
        tokens: bits of the roles, and sizes, of each operator.
        sure: bits of the roles whose operators certainly belong to a module.
        sizes: bits of all sizes.
    """
    paths = list(_leaf_paths(root, ()))
    if not paths or len(paths) * len(tokens) > _MOST_CELLS:
        return None
    costs = _Costs(paths, sure, sizes)
    cost, pairs = _best(costs, tokens)
    return _as_calls(root, paths, tokens, pairs, costs, cost)


def _leaf_paths(shape: ModuleShape, above: Path) -> list[Path]:
    """The path from the root to each module that runs operators, in the order of the tree."""
    here = (*above, shape)
    if not shape.children:
        return [here] if shape.all else []
    return [path for child in shape.children for path in _leaf_paths(child, here)]


class _Costs:
    """What matching, skipping a leaf and skipping an operator cost, by distinct operator."""

    def __init__(self, paths: list[Path], sure: int, sizes: int) -> None:
        self._paths, self._sure, self._sizes = paths, sure, sizes
        self.absence = np.array([path[-1].absence for path in paths])
        self._call = np.array([path[-1].call for path in paths])
        self._own = _own_between(paths)
        self.inside = np.array([_INSIDE_BLOCK * inside for inside in _within_blocks(paths)])
        self._known: dict[int, tuple[Floats, Floats]] = {}
        self._repeats: dict[tuple[int, int, int], tuple[float, Path]] = {}

    def of(self, token: int) -> tuple[Floats, Floats]:
        """The cost of matching each leaf (infinite if impossible), and of skipping between."""
        if token not in self._known:
            size = token & self._sizes
            match = [
                np.inf if not path[-1].all & token
                else SIZE_MISMATCH if size and path[-1].size and not path[-1].size & size
                else 0.0
                for path in self._paths
            ] + self._call  # fmt: skip
            skip = UNCLAIMED if token & self._sure else UNCLAIMED_UNSURE
            between = np.minimum(skip + self.inside, self._again(token))
            free = np.array([bool(own & token) for own in self._own])
            self._known[token] = np.array(match), np.where(free, 0.0, between)
        return self._known[token]

    def _again(self, token: int) -> Floats:
        """What it costs that a leaf of a block around here runs the operator once more."""
        cost = [self._cheapest_repeat(token, path)[0] for path in self._paths]
        return np.minimum([np.inf, *cost], [*(one + _AGAIN_BEFORE for one in cost), np.inf])

    def repeat(self, token: int, before: Path, after: Path) -> Path:
        """The leaf that runs the operator once more between two leaves; none if that is unlikely.

        Args:
            token: bits of the operator.
            before, after: paths of the leaves that ran before and that run next; may be empty.
        """
        found = [
            (cost + extra, path)
            for around, extra in ((before, 0.0), (after, _AGAIN_BEFORE))
            for cost, path in [self._cheapest_repeat(token, around)]
        ]
        cost, path = min(found, key=lambda one: one[0])
        return path if cost < UNCLAIMED else ()

    def _cheapest_repeat(self, token: int, path: Path) -> tuple[float, Path]:
        """The cheapest leaf in the blocks around a leaf that runs such an operator."""
        if not path[:-1]:
            return np.inf, ()
        key = id(path[-2]), len(path), token
        if key not in self._repeats:
            outer, found = self._cheapest_repeat(token, path[:-1])
            own = [leaf for leaf in path[-2].children if not leaf.children and leaf.all & token]
            leaf = min(own, key=lambda leaf: leaf.again, default=None)
            here = leaf.again if leaf else np.inf
            inner = (*path[:-1], leaf) if leaf else ()
            outer += _AGAIN_OUTSIDE
            self._repeats[key] = (here, inner) if here <= outer else (outer, found)
        return self._repeats[key]


def _own_between(paths: list[Path]) -> list[int]:
    """Bits of the operators that branches run themselves, before, between and after leaves."""
    around = [0]
    for path in paths:
        bits = 0
        for shape in path:
            bits |= 0 if shape.is_leaf else shape.own
        around.append(bits)
    return [one | other for one, other in pairwise([*around, 0])]


def _within_blocks(paths: list[Path]) -> Mask:
    """Whether the place before each leaf, and after the last, is inside a block of leaves."""
    inside = [one[:-1] == other[:-1] for one, other in pairwise(paths)]
    return np.array([False, *inside, False])


def _best(costs: _Costs, tokens: Sequence[int]) -> tuple[float, list[tuple[int, int]]]:
    """The cost of the best alignment, and its pairs (operator, leaf)."""
    passed = np.concatenate([[0.0], np.cumsum(costs.absence)])
    best = passed + np.append(0.0, costs.inside[1:])
    steps = np.zeros((len(tokens), len(passed)), np.int8)
    for row, token in enumerate(tokens):
        match, skip = costs.of(token)
        skipped = best + skip
        matched = np.concatenate([[np.inf], best[:-1] + match])
        direct = np.minimum(matched, skipped)
        past_leaves = np.minimum.accumulate(direct - passed + costs.inside) + passed + costs.inside
        best = np.minimum(direct, past_leaves)
        steps[row] = np.where(
            best < direct - 1e-9, _LEAF, np.where(matched <= skipped, _MATCH, _TOKEN)
        )
    return float(best[-1]), _traced(steps)


def _traced(steps: Codes8) -> list[tuple[int, int]]:
    row, column = len(steps) - 1, steps.shape[1] - 1 if len(steps) else 0
    pairs = []
    while row >= 0:
        step = steps[row, column]
        if step == _MATCH:
            pairs.append((row, column - 1))
        row -= step != _LEAF
        column -= step != _TOKEN
    return pairs[::-1]


# -- the alignment as calls


def _as_calls(
    root: ModuleShape,
    paths: list[Path],
    tokens: Sequence[int],
    pairs: list[tuple[int, int]],
    costs: _Costs,
    cost: float,
) -> CallMatch:
    """The calls of an alignment; operators between leaves are inside what encloses both."""
    leaf_of = dict(pairs)
    owners: list[tuple[int, Path]] = []
    before: Path = ()
    following = _following(len(tokens), pairs)
    for row, token in enumerate(tokens):
        if row in leaf_of:
            before = paths[leaf_of[row]]
            owners.append((row, before))
            continue
        after = paths[following[row]] if following[row] >= 0 else ()
        owner = _owner(token, before) or _owner(token, after)
        if path := owner or costs.repeat(token, before, after):
            owners.append((row, path))
    return _call(root, 0, owners, (0, len(tokens)), cost)


def _following(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The leaf of the next matched operator from each operator on, or -1."""
    result, rest = [-1] * count, list(pairs)
    for row in range(count):
        while rest and rest[0][0] < row:
            rest.pop(0)
        result[row] = rest[0][1] if rest else -1
    return result


def _owner(token: int, path: Path) -> Path:
    """The path to the innermost branch around a leaf that runs such an operator itself."""
    for depth in range(len(path) - 1, 0, -1):
        if not path[depth].is_leaf and path[depth].own & token:
            return path[: depth + 1]
    return ()


def _call(
    shape: ModuleShape,
    depth: int,
    found: list[tuple[int, Path]],
    span: tuple[int, int],
    cost: float = 0.0,
) -> CallMatch:
    """The call of a module that explains the operators of a span, with the calls inside it."""
    inner: InnerCall | None = None
    numbers = {id(child): number for number, child in enumerate(shape.children)}
    inside = [one for one in found if len(one[1]) > depth + 1]
    for _, group in groupby(inside, key=lambda one: id(one[1][depth + 1])):
        rows = list(group)
        child = rows[0][1][depth + 1]
        begin, end = rows[0][0], rows[-1][0] + 1
        call = _call(child, depth + 1, rows, (begin, end))
        inner = InnerCall(begin - span[0], numbers[id(child)], call, inner)
    return CallMatch(cost, span[1] - span[0], inner)
