"""Complete a model tree: blocks of one class are alike.

A tree may lack a layer, or name one twice or out of place: it comes from another version of the model, or
from a description of it. Deep models repeat their blocks, so a block that differs from its equals in some
leaves is brought into line with them before it is matched: a leaf that it lacks is supplied, one that only it
has is doubted, and leaves come in the usual order. What matches a supplied leaf belongs to the block. Blocks
that differ in their inner blocks are different on purpose, and stay so.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.links.subsequences import common_positions
from stepscope.facts.annotate.module_evidence import Module
from stepscope.facts.annotate.modules.matching.roles import class_name
from stepscope.trace.sets import Interner

_LEAST_ALIKE = 3  # blocks, of which two or more are the same
_VARIANT = 0.5  # an arrangement this often as frequent as the usual one exists on purpose


@dataclass(frozen=True)
class CompletedTree:
    """A model tree whose blocks of one class have the same leaves."""

    modules: list[Module]  # parents before children
    # the module of the given tree to which each belongs: itself; the parent of a leaf that was supplied,
    # or that cannot be told from one. Shape (modules,).
    origin: Ids
    own: Mask  # whether the origin of each is the module itself, shape (modules,)
    # modules that may not exist: supplied leaves, and leaves that only one block has
    doubtful: frozenset[int]


class _BlockChild(NamedTuple):
    """A child of a block."""

    module: int  # its index in the given tree, -1 for a leaf that was supplied
    kind: str  # its class
    key: str  # what it is compared by with the children of other blocks: its name, else its class
    doubtful: bool = False
    ambiguous: bool = False


_Row = Sequence[_BlockChild]


def complete(modules: Sequence[Module]) -> CompletedTree:
    """Supply, doubt and sort leaves where a block differs from most blocks of its class.

    Of modules, parents before children, it makes the tree as it is likely to have run.
    """
    children: dict[int, list[_BlockChild]] = defaultdict(list)
    for index, module in enumerate(modules):
        kind = class_name(module)
        children[module.parent].append(_BlockChild(index, kind, kind))
    for blocks in _groups(modules).values():
        if len(blocks) >= _LEAST_ALIKE and any(children[block] for block in blocks):
            children.update(_aligned(modules, blocks, children))
    return _in_order(modules, children)


def _groups(modules: Sequence[Module]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, module in enumerate(modules):
        around = class_name(modules[module.parent]) if module.parent >= 0 else ""
        groups[class_name(module), around].append(index)
    return groups


def _aligned(
    modules: Sequence[Module], blocks: Sequence[int], children: dict[int, list[_BlockChild]]
) -> dict[int, list[_BlockChild]]:
    """The children of each block that differs from the arrangements that others have."""
    below = [child for block in blocks for child in children[block]]
    inner = {child.kind for child in below if children.get(child.module)}
    names = Counter(modules[child.module].name for child in below)
    common = {name for name, count in names.items() if name and 2 * count > len(blocks)}
    rows = {block: [_by_name(modules, child, common) for child in children[block]] for block in blocks}
    usual = _usual(rows, inner)
    result = {}
    for block, row in rows.items():
        alike = [other for other in usual if _branches(other, inner) == _branches(row, inner)]
        if alike and _keys(row) not in map(_keys, alike):
            best = max(alike, key=lambda other: len(_pairs(other, row)) / (len(other) + len(row)))
            if 4 * len(_pairs(best, row)) >= len(best) + len(row) or not row:
                result[block] = _merged(best, row)
    return result


def _by_name(modules: Sequence[Module], child: _BlockChild, common: set[str]) -> _BlockChild:
    name = modules[child.module].name
    return child._replace(key=f".{name}") if name in common else child


def _keys(row: _Row) -> tuple[str, ...]:
    return tuple(child.key for child in row)


def _branches(row: _Row, inner: set[str]) -> tuple[str, ...]:
    """The keys of the blocks in a row; a block may have lost its leaves."""
    return tuple(child.key for child in row if child.kind in inner)


def _usual(rows: dict[int, list[_BlockChild]], inner: set[str]) -> list[_Row]:
    """The arrangements of children that exist on purpose, the most frequent first.

    Of those with the same inner blocks: the most frequent, and others that are about as frequent.
    """
    example = {_keys(row): row for row in rows.values()}
    most: dict[tuple[str, ...], int] = {}
    usual: list[_Row] = []
    for keys, count in Counter(map(_keys, rows.values())).most_common():
        branches = _branches(example[keys], inner)
        if count >= max(2, _VARIANT * most.setdefault(branches, count)) and keys:
            usual.append(example[keys])
    return usual


def _pairs(usual: _Row, row: _Row) -> list[tuple[int, int]]:
    number: Interner[str] = Interner()
    keys = [np.array([number[child.key] for child in children], np.int64) for children in (usual, row)]
    return [(first, second) for first, second in common_positions(*keys).tolist()]


def _merged(usual: _Row, row: _Row) -> list[_BlockChild]:
    """The children of a block in the usual order, with those that it lacks or has in addition."""
    partner = _partners(usual, row)
    ambiguous = _ambiguous(usual, partner)
    merged: list[tuple[float, _BlockChild]] = []
    for position, child in enumerate(usual):
        supplied = child._replace(module=-1, doubtful=True)
        own = row[partner[position]] if position in partner else supplied
        merged.append((position, own._replace(ambiguous=position in ambiguous)))
    before = -1
    position_of = {place: position for position, place in partner.items()}
    for place, child in enumerate(row):
        before = position_of.get(place, before)
        if place not in position_of:
            merged.append((before + 0.5, child._replace(doubtful=True)))
    return [child for _, child in sorted(merged, key=lambda pair: pair[0])]


def _partners(usual: _Row, row: _Row) -> dict[int, int]:
    """The child of a block at each usual position: in order, or moved, or under another name."""
    partner = dict(_pairs(usual, row))
    left = [place for place in range(len(row)) if place not in partner.values()]
    for position, child in enumerate(usual):
        moved = next((place for place in left if row[place].key == child.key), -1)
        if position not in partner and moved >= 0:
            partner[position] = moved
            left.remove(moved)
    for place in left:
        before = max((at for at, other in partner.items() if other < place), default=-1)
        if before + 1 < len(usual):
            partner.setdefault(before + 1, place)
    return partner


def _ambiguous(usual: _Row, partner: dict[int, int]) -> set[int]:
    """Positions next to equal ones of which some are missing: which ones is unknown."""
    ambiguous: set[int] = set()
    first = 0
    for position in range(1, len(usual) + 1):
        if position == len(usual) or usual[position].key != usual[first].key:
            run = range(first, position)
            if any(place not in partner for place in run):
                ambiguous.update(run)
            first = position
    return ambiguous


def _in_order(modules: Sequence[Module], children: dict[int, list[_BlockChild]]) -> CompletedTree:
    result: list[Module] = []
    origin: list[int] = []
    own: list[bool] = []
    doubtful = []
    stack = [(child, -1, -1) for child in reversed(children[-1])]
    while stack:
        child, parent, block = stack.pop()
        index = len(result)
        given = modules[child.module] if child.module >= 0 else Module("", "", child.kind)
        result.append(Module(given.path, given.name, given.kind, parent, given.facts))
        itself = child.module >= 0 and not child.ambiguous
        origin.append(child.module if itself else block)
        own.append(itself)
        if child.doubtful:
            doubtful.append(index)
        inner = children.get(child.module, []) if child.module >= 0 else []
        stack += [(inside, index, child.module) for inside in reversed(inner)]
    return CompletedTree(result, np.array(origin), np.array(own), frozenset(doubtful))
