"""Align a sequence of operators with the leaves of a model tree.

docs/design/modules.md, "How matching works", has the costs. The cheapest alignment is found by dynamic
programming over operators and leaves; a leaf that the tree lacks costs its own operator and nothing else.

Source: S. B. Needleman, C. D. Wunsch, A general method applicable to the search for similarities
in the amino acid sequence of two proteins, Journal of Molecular Biology 48 (1970).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Codes8, Floats, Ids, Ids32, Mask
from stepscope.facts.annotate.modules.matching.roles import BLOCK_AGAIN, Kind, Kinds, ModuleShape

# Costs, relative to one operator that certainly belongs to a module but is unclaimed.
UNCLAIMED, UNCLAIMED_UNSURE = 1.0, 0.2
_SIZE_MISMATCH = 0.3  # a leaf claims an operator with the parameter size of another leaf
_INSIDE_BLOCK = 0.05  # what is skipped likelier begins and ends between blocks than inside one
_AGAIN_OUTSIDE = 0.01  # per block between a repeated leaf and what ran before
_AGAIN_BEFORE = 0.04  # a leaf of the block that follows, which has not run yet
_MOVED = 0.25  # a child of a class of blocks, divided by their number: they run the same code
_TRIES, _ROUNDS = 24, 16  # moves that are tried before one is made, and moves that are made
_MOST_CELLS = 200_000_000  # of all alignments together; an alignment takes a byte for each
_TOKEN, _LEAF, _MATCH, _LOOP = 0, 1, 2, 3
_TINY = 1e-9  # of a cost: differences of less are rounding

Path = tuple[ModuleShape, ...]
Order = dict[Kinds, tuple[int, ...]]
"""The children of a class of blocks in the order of calls, where that is not the tree's."""


class OwnedOperator(NamedTuple):
    """An operator and the path of what runs it; a key for each call on the path."""

    row: int
    path: Path
    keys: list[tuple[int, int]]


class _Move(NamedTuple):
    """A child of a class of blocks that may run before or after another one."""

    kinds: Kinds
    child: int
    anchor: int
    after: bool


class Aligner:
    """Aligns the sequences of one trace; the order of calls that one shows begins the next.

    Args:
        root: the shape above the roots of the tree.
        sure: bits of the roles whose operators certainly belong to a module.
        sizes: bits of all sizes.
    """

    def __init__(self, root: ModuleShape, sure: int, sizes: int) -> None:
        self._root = root
        self._order: Order = {}
        self._zipped = False
        self._paths = list(_leaf_paths(root, (), {}))
        self._leaves = _Leaves(self._paths, sure, sizes)
        self._number = {id(path[-1]): number for number, path in enumerate(self._paths)}
        self._count = Counter(part.kinds for part in {part for path in self._paths for part in path})

    def explain(self, tokens: Sequence[int]) -> list[OwnedOperator]:
        """The operators that calls in the cheapest alignment run, in order; none if that costs more.

        A token has the bits of the roles that an operator may play, and of the sizes of the
        parameters that it may work on, if known.
        """
        left = _MOST_CELLS - len(self._paths) * len(tokens)
        if not self._paths or not tokens or left < 0:
            return []
        best = self._first(tokens)
        is_far = False
        for _ in range(_ROUNDS):
            orders = list(self._orders(best.moves(self._count, is_far)[:_TRIES]))
            left -= len(orders) * len(self._paths) * len(tokens)
            if left < 0:
                break
            tried = ((self._align(tokens, order), order, extra) for order, extra in orders)
            cheapest = min(tried, key=lambda trial: trial[0].cost + trial[2], default=None)
            if cheapest and cheapest[0].cost + cheapest[2] < best.cost:
                best, self._order, _ = cheapest
            elif is_far or best.cost < UNCLAIMED:
                break
            else:
                is_far = True
        return best.owned() if best.cost < UNCLAIMED * len(tokens) else []

    def _first(self, tokens: Sequence[int]) -> "_Alignment":
        """The alignment before any move: list after list, or lists in turn if that is cheaper."""
        plain = self._align(tokens, self._order)
        if self._zipped or list(_leaf_paths(self._root, (), {}, zipped=True)) == self._paths:
            return plain
        self._zipped = True
        in_turn = self._align(tokens, self._order)
        self._zipped = in_turn.cost + _MOVED < plain.cost
        return in_turn if self._zipped else plain

    def _orders(self, moves: Sequence[_Move]) -> Iterator[tuple[Order, float]]:
        """Orders to try and what they cost: with one move, or with children of a kind in front.

        Where all norms are registered last and run first, each single move makes it worse.
        """
        for move in moves:
            yield _moved(self._order, move), _MOVED / self._count[move.kinds]
        for kind in dict.fromkeys(move.kinds[1][move.child] for move in moves):
            order, blocks = self._order, 0
            for kinds, count in self._count.items():
                first = order.get(kinds, (0,))[0]
                if count > 1 and kind in kinds[1] and kinds[1].index(kind) != first:
                    move = _Move(kinds, kinds[1].index(kind), first, after=False)
                    order, blocks = _moved(order, move), blocks + count
            if blocks:
                yield order, _MOVED / blocks
            yield from self._each_before(kind)

    def _each_before(self, kind: Kind) -> Iterator[tuple[Order, float]]:
        """Children of a kind in front of the siblings that they follow, in all blocks at once.

        A norm is often registered after what it runs before.
        """
        moved = {
            kinds: ahead
            for kinds, count in self._count.items()
            if count > 1 and (ahead := _each_ahead(kinds[1], kind)) != tuple(range(len(kinds[1])))
        }
        if moved:
            yield {**self._order, **moved}, _MOVED / sum(self._count[kinds] for kinds in moved)

    def _align(self, tokens: Sequence[int], order: Order) -> "_Alignment":
        paths = list(_leaf_paths(self._root, (), order, self._zipped))
        places = np.array([self._number[id(path[-1])] for path in paths])
        return _Alignment(self._leaves, paths, places, tokens)


def _leaf_paths(shape: ModuleShape, above: Path, order: Order, zipped: bool = False) -> Iterator[Path]:
    """The path from the root to each module that runs operators, in order.

    With `zipped`, neighboring lists of about the same length run in turn, the longer one first: the
    stages of a ConvNet and what lies between them.
    """
    here = (*above, shape)
    if not shape.children and shape.all:
        yield here
    children = [shape.children[number] for number in order.get(shape.kinds, range(len(shape.children)))]
    while children:
        lists = children[:2] if zipped and _run_in_turn(children[:2]) else children[:1]
        del children[: len(lists)]
        if len(lists) == 1:
            yield from _leaf_paths(lists[0], here, order, zipped)
            continue
        lists.sort(key=lambda part: -len(part.children))
        for inner in zip_longest(*(part.children for part in lists)):
            for part, child in zip(lists, inner, strict=True):
                yield from _leaf_paths(child, (*here, part), order, zipped) if child else ()


def _run_in_turn(parts: Sequence[ModuleShape]) -> bool:
    lengths = [len(part.children) for part in parts if part.kind[0] == "ModuleList"]
    return len(lengths) == 2 and max(lengths) > 1 and abs(lengths[0] - lengths[1]) <= 1


def _moved(order: Order, move: _Move) -> Order:
    """The order after a move; children of one kind stay in the order of the tree."""
    kinds = move.kinds[1]
    children = list(order.get(move.kinds, range(len(kinds))))
    children.remove(move.child)
    children.insert(children.index(move.anchor) + move.after, move.child)
    numbers = {kind: iter(sorted(n for n in children if kinds[n] == kind)) for kind in kinds}
    return {**order, move.kinds: tuple(next(numbers[kinds[child]]) for child in children)}


def _each_ahead(kinds: Sequence[Kind], kind: Kind) -> tuple[int, ...]:
    """The children with each of a kind in front of the sibling before it, unless that is alike."""
    order = list(range(len(kinds)))
    for place in range(1, len(order)):
        if kinds[order[place]] == kind != kinds[order[place - 1]]:
            order[place - 1 : place + 1] = order[place], order[place - 1]
    return tuple(order)


class _Leaves:
    """What leaves cost, by distinct operator, in the order of the tree."""

    def __init__(self, paths: Sequence[Path], sure: int, sizes: int) -> None:
        self._paths, self._sure, self.sizes = paths, sure, sizes
        self.absence = np.array([path[-1].absence for path in paths])
        self._call = np.array([path[-1].call for path in paths])
        self._known: dict[int, tuple[Floats, Floats, Mask]] = {}
        self._repeats: dict[tuple[int, int, int], tuple[float, Path]] = {}

    def unclaimed(self, token: int) -> float:
        return UNCLAIMED if token & self._sure else UNCLAIMED_UNSURE

    def of(self, token: int) -> tuple[Floats, Floats, Mask]:
        """For each leaf: the cost of matching it, infinite if impossible; the cost that a leaf of a
        block around it runs the operator once more; whether a branch around it runs it itself."""
        if token not in self._known:
            match = [
                np.inf
                if not path[-1].all & token
                else 0.0
                if path[-1].fits_size(token & self.sizes)
                else _SIZE_MISMATCH
                for path in self._paths
            ]
            again = [self.repeat(token, path)[0] for path in self._paths]
            own = [any(part.own & token for part in path if not part.is_leaf) for path in self._paths]
            self._known[token] = np.array(match) + self._call, np.array(again), np.array(own)
        return self._known[token]

    def repeat(self, token: int, path: Path) -> tuple[float, Path]:
        """The cheapest leaf in the blocks around a leaf that runs such an operator again."""
        if not path[:-1]:
            return np.inf, ()
        key = id(path[-2]), len(path), token
        if key not in self._repeats:
            outer, found = self.repeat(token, path[:-1])
            own = [leaf for leaf in path[-2].children if not leaf.children and leaf.all & token]
            leaf = min(own, key=lambda leaf: leaf.again, default=None)
            here = leaf.again if leaf else np.inf
            inner = (*path[:-1], leaf) if leaf else ()
            outer += _AGAIN_OUTSIDE
            self._repeats[key] = (here, inner) if here <= outer else (outer, found)
        return self._repeats[key]


class _Alignment:
    """The cheapest alignment of operators with leaves in one order, and the cost of all mismatches."""

    def __init__(self, leaves: _Leaves, paths: list[Path], places: Ids, tokens: Sequence[int]) -> None:
        self._leaves, self._paths, self._places, self._tokens = leaves, paths, places, tokens
        inside = [path[:-1] == other[:-1] for path, other in pairwise(paths)]
        self._inside = _INSIDE_BLOCK * np.array([False, *inside, False])
        self._blocks = _blocks(paths)
        self._costs: dict[int, tuple[Floats, Floats]] = {}
        self.cost, steps, loops = self._best()
        self._leaf_of, self._looped = self._trace(steps, loops)

    def _best(self) -> tuple[float, Codes8, Ids32]:
        """The cost, the last step to each cell, and the block whose loop leads to each start."""
        passed = np.concatenate([[0.0], np.cumsum(self._leaves.absence[self._places])])
        inside, blocks = self._inside, self._blocks
        best = passed + np.append(0.0, inside[1:])
        steps = np.zeros((len(self._tokens), len(passed)), np.int8)
        loops = np.zeros((len(self._tokens), len(blocks.begins)), np.int32)
        for row, token in enumerate(self._tokens):
            match, skip = self._of(token)
            skipped = best + skip
            matched = np.concatenate([[np.inf], best[:-1] + match])
            direct = np.minimum(matched, skipped)
            steps[row] = np.where(matched <= skipped, _MATCH, _TOKEN)
            best = _past_leaves(direct, passed, inside, steps[row])
            ended = best[blocks.ends] + BLOCK_AGAIN
            least = np.minimum.reduceat(ended, blocks.first)
            again = least < best[blocks.begins] - _TINY
            if again.any():
                cheapest = np.flatnonzero(ended == np.repeat(least, blocks.sizes))[::-1]
                loops[row, blocks.group[cheapest]] = cheapest
                best[blocks.begins[again]] = least[again]
                steps[row, blocks.begins[again]] = _LOOP
                best = _past_leaves(best, passed, inside, steps[row])
        return float(best[-1]), steps, loops

    def _of(self, token: int) -> tuple[Floats, Floats]:
        """The cost of matching each leaf with an operator, and of skipping it before each."""
        if token not in self._costs:
            match, again, own = self._leaves.of(token)
            match, again, own = match[self._places], again[self._places], own[self._places]
            around = np.minimum([np.inf, *again], [*(again + _AGAIN_BEFORE), np.inf])
            skip = np.minimum(self._leaves.unclaimed(token) + self._inside, around)
            free = np.append(False, own) | np.append(own, False)
            self._costs[token] = match, np.where(free, 0.0, skip)
        return self._costs[token]

    def _trace(self, steps: Codes8, loops: Ids32) -> tuple[list[int], list[tuple[int, int]]]:
        """The leaf of each operator, -1 for none; (operator, block) where one runs again."""
        leaf_of, looped = [-1] * len(steps), []
        row, column = len(steps) - 1, steps.shape[1] - 1
        start = {begin: place for place, begin in enumerate(self._blocks.begins.tolist())}
        while row >= 0:
            step = steps[row, column]
            if step == _LOOP:
                block = int(loops[row, start[column]])
                looped.append((row, block))
                column = int(self._blocks.ends[block])
                continue
            if step == _MATCH:
                leaf_of[row] = column - 1
            row -= step != _LEAF
            column -= step != _TOKEN
        return leaf_of, looped[::-1]

    def _unclaimed(self) -> Iterator[tuple[int, Path, Path]]:
        """Operators that no leaf claims, with the paths of the leaves before and after."""
        known = [row for row, leaf in enumerate(self._leaf_of) if leaf >= 0]
        for before, after in pairwise([-1, *known, len(self._tokens)]):
            around = [
                self._paths[self._leaf_of[row]] if 0 <= row < len(self._tokens) else ()
                for row in (before, after)
            ]
            yield from ((row, around[0], around[1]) for row in range(before + 1, after))

    def _mismatched(self) -> Iterator[tuple[int, Path, Path]]:
        """Operators of another size than the leaf that claims them, as if before and after it."""
        for row, leaf in enumerate(self._leaf_of):
            if leaf >= 0 and self._of(self._tokens[row])[0][leaf] >= _SIZE_MISMATCH:
                yield row, (), self._paths[leaf]
                yield row, self._paths[leaf], ()

    def moves(self, count: Counter[Kinds], is_far: bool) -> list[_Move]:
        """Moves of children to where operators are left that they may claim, the likeliest first.

        Args:
            count: how many blocks there are of each class.
            is_far: whether children of all blocks around may move, not of the innermost alone.
        """
        votes: Counter[_Move] = Counter()
        for row, before, after in (*self._unclaimed(), *self._mismatched()):
            token = self._tokens[row]
            if not (_owner(token, before) or _owner(token, after)):
                votes.update(_moves(token, token & self._leaves.sizes, before, after, is_far))
        return sorted(votes, key=lambda move: (-votes[move], -count[move.kinds]))

    def owned(self) -> list[OwnedOperator]:
        """What runs each operator; those between leaves are run by what encloses both."""
        owners = {row: self._paths[leaf] for row, leaf in enumerate(self._leaf_of) if leaf >= 0}
        for row, before, after in self._unclaimed():
            token = self._tokens[row]
            path = _owner(token, before) or _owner(token, after)
            if path := path or self._repeated(token, before, after):
                owners[row] = path
        turns: Counter[int] = Counter()
        result: list[OwnedOperator] = []
        loops = [*self._looped, (len(self._tokens), -1)]
        for row in sorted(owners):
            while loops[0][0] < row:
                turns[id(self._blocks.parts[loops.pop(0)[1]])] += 1
            path = owners[row]
            keys = [(id(part), row if part.is_leaf else turns[id(part)]) for part in path]
            result.append(OwnedOperator(row, path, keys))
        return result

    def _repeated(self, token: int, before: Path, after: Path) -> Path:
        """The leaf that runs an operator again between two leaves; none if that is unlikely."""
        repeats = [self._leaves.repeat(token, path) for path in (before, after)]
        (cost, path), (later, other) = repeats
        if later + _AGAIN_BEFORE < cost:
            cost, path = later + _AGAIN_BEFORE, other
        return path if cost < UNCLAIMED else ()


def _past_leaves(direct: Floats, passed: Floats, inside: Floats, steps: Codes8) -> Floats:
    """The costs after leaves that are not called, where that is cheaper."""
    past = np.minimum.accumulate(direct - passed + inside) + passed + inside
    skips = past < direct - _TINY
    steps[skips] = _LEAF
    return np.where(skips, past, direct)


class _Blocks(NamedTuple):
    """The blocks of leaves that may run again, by where they begin."""

    parts: list[ModuleShape]  # the blocks
    begins: Ids  # the distinct columns at which blocks begin, ascending, shape (starts,)
    first: Ids  # the first block of each start, shape (starts,)
    sizes: Ids  # how many blocks have each start, shape (starts,)
    group: Ids  # the number of the start of each block, shape (blocks,)
    ends: Ids  # the column after each block, shape (blocks,)


def _blocks(paths: Sequence[Path]) -> _Blocks:
    spans: dict[int, list[int]] = {}
    parts: dict[int, ModuleShape] = {}
    for column, path in enumerate(paths):
        for part in path[1:] or path:  # all but the root, which stands for no module
            spans.setdefault(id(part), [column, column])[1] = column + 1
            parts[id(part)] = part
    kept = sorted((key for key in spans if parts[key].children), key=lambda key: spans[key][0])
    kept = kept or [next(iter(spans))]
    begin, end = np.array([spans[key] for key in kept]).T
    begins, first, group, sizes = np.unique(begin, return_index=True, return_inverse=True, return_counts=True)
    return _Blocks([parts[key] for key in kept], begins, first, sizes, group, end)


def _moves(token: int, sizes: int, before: Path, after: Path, is_far: bool) -> Iterator[_Move]:
    """Moves after which a child that may claim an operator runs between two leaves, or near them."""
    shared = 0 if is_far else sum(path is other for path, other in zip(before, after, strict=False))
    for path, low, is_after in ((before, shared, True), (after, max(shared - 1, 0), False)):
        for part, anchor in pairwise(path[low:]):
            number = next(n for n, child in enumerate(part.children) if child is anchor)
            for child, other in enumerate(part.children):
                if other.all & token and other.kind != anchor.kind and other.fits_size(sizes):
                    yield _Move(part.kinds, child, number, is_after)


def _owner(token: int, path: Path) -> Path:
    """The path to the innermost branch around a leaf that runs such an operator itself."""
    for depth in range(len(path) - 1, 0, -1):
        if not path[depth].is_leaf and path[depth].own & token:
            return path[: depth + 1]
    return ()
