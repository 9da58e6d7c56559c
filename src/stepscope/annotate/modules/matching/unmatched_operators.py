"""Assign operators that identify no leaf: to an adjacent leaf, a block, or the enclosing call.

The operators of a call are the same each time; its surroundings vary. So a leaf that runs more than
its identifying operator (`LlamaRMSNorm`: pow, mean, add, *rsqrt*, mul) owns what all calls of its
class have in common on each side. The rest belongs to the innermost call around both neighbors, or,
if that is only a container or calls one block after another, to the block that ends there (a
residual add).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.annotate.modules.matching.leaf_operators import (
    CONTAINERS,
    ONE_OPERATOR,
    Role,
    plain,
    role_around,
    role_of,
)
from stepscope.annotate.modules.matching.matched_calls import MatchedCalls

_MOST_OF_A_LEAF = 16  # operators that one call of a leaf runs


@dataclass
class _Gap:
    """A run of unidentified operators, from `first` up to `end`, between two calls."""

    first: int
    end: int
    before: int
    after: int


def owners(
    calls: MatchedCalls, positions: Sequence[int], names: Sequence[str], classes: Sequence[str]
) -> list[int]:
    """The call that runs each operator of a sequence.

    Args:
        calls: the calls found for the identifying operators.
        positions: positions of the identifying operators in `names`, ascending.
        names: names of the operators.
        classes: class of each module of the tree.

    Returns:
        A call for each name; call 0, which stands for no module, if it is outside all calls.
    """
    found = [0] * len(names)
    claims = [(place, call) for place, call in zip(positions, calls.claimed, strict=True) if call]
    for position, call in claims:
        found[position] = call
    gaps = _gaps(claims, len(names))
    _give_helpers(gaps, found, calls, names, classes)
    _give_common(gaps, found, calls, names, classes)
    for gap in gaps:
        found[gap.first : gap.end] = [_between(gap, calls, classes)] * (gap.end - gap.first)
    return found


def _gaps(claims: Sequence[tuple[int, int]], length: int) -> list[_Gap]:
    return [
        _Gap(start + 1, end, before, after)
        for (start, before), (end, after) in pairwise([(-1, 0), *claims, (length, 0)])
    ]


def _give_helpers(
    gaps: list[_Gap],
    found: list[int],
    calls: MatchedCalls,
    names: Sequence[str],
    classes: Sequence[str],
) -> None:
    """Assign adjacent operators that belong to the role of an identifying operator."""
    for gap in gaps:
        before = re.compile(_role(gap.before, calls, classes).trail)
        after = re.compile(_role(gap.after, calls, classes).lead)
        while gap.first < gap.end and before.search(names[gap.first]):
            found[gap.first] = gap.before
            gap.first += 1
        while gap.first < gap.end and after.search(names[gap.end - 1]):
            gap.end -= 1
            found[gap.end] = gap.after


def _role(call: int, calls: MatchedCalls, classes: Sequence[str]) -> Role:
    return role_of(_class(call, calls, classes))


def _give_common(
    gaps: list[_Gap],
    found: list[int],
    calls: MatchedCalls,
    names: Sequence[str],
    classes: Sequence[str],
) -> None:
    """Assign what all calls of a class have in common around them: leaves first, then blocks.

    Classes with the most varied surroundings come first: they are the most certain, and narrow what
    is left for others.
    """
    for edges in (_leaf_edges, _block_edges):
        sides: dict[tuple[bool, str], list[tuple[_Gap, int]]] = defaultdict(list)
        for gap in gaps:
            for is_after, call in edges(gap, calls, names, classes):
                sides[is_after, _class(call, calls, classes)].append((gap, call))
        for side in sorted(sides, key=lambda side: -_variety(sides[side], names)):
            _take_common(sides[side], *side, found, names)


def _leaf_edges(
    gap: _Gap, calls: MatchedCalls, names: Sequence[str], classes: Sequence[str]
) -> Iterator[tuple[bool, int]]:
    """Leaves adjacent to a gap that run more than one operator, and their side of the gap."""
    for is_after, call, other, position in (
        (True, gap.before, gap.after, gap.first - 1),
        (False, gap.after, gap.before, gap.end),
    ):
        adjacent = 0 <= position < len(names) and call not in calls.chain(other)
        if adjacent and calls.runs[call]:
            whole = re.search(_role(call, calls, classes).whole, plain(names[position]))
            if not whole or not ONE_OPERATOR.search(_class(call, calls, classes)):
                yield is_after, call


def _block_edges(
    gap: _Gap, calls: MatchedCalls, names: Sequence[str], classes: Sequence[str]
) -> Iterator[tuple[bool, int]]:
    """The repeated blocks that end before a gap or begin after it."""
    ending, starting = calls.chain(gap.before), calls.chain(gap.after)
    shared = sum(before == after for before, after in zip(ending, starting, strict=False))
    for is_after, chain in ((True, ending), (False, starting)):
        for call in chain[shared:]:
            if calls.is_repeated(call, classes):
                yield is_after, call
                break


def _variety(edges: list[tuple[_Gap, int]], names: Sequence[str]) -> int:
    return len({_text(gap, names) for gap, _ in edges})


def _take_common(
    edges: list[tuple[_Gap, int]], is_after: bool, name: str, found: list[int], names: Sequence[str]
) -> None:
    """Assign the operators that all gaps have in common on one side to the calls there."""
    if len(edges) == 1 and _is_open(edges[0][0]):
        return
    texts = [_text(gap, names)[:: 1 if is_after else -1] for gap, _ in edges]
    count = _common(texts)
    if is_after and role_around(name):  # what is added to a block's result is added around it
        count = next((n for n in range(count) if plain(texts[0][n]) == "add"), count)
    for gap, call in edges:
        first = gap.first if is_after else gap.end - count
        found[first : first + count] = [call] * count
        gap.first += count * is_after
        gap.end -= count * (not is_after)


def _is_open(gap: _Gap) -> bool:
    """Whether so much runs before the first call, or after the last, that no leaf runs it all."""
    return 0 in (gap.before, gap.after) and gap.end - gap.first > _MOST_OF_A_LEAF


def _text(gap: _Gap, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[gap.first : gap.end])


def _common(texts: list[tuple[str, ...]]) -> int:
    """The length of the common prefix."""
    count = 0
    for column in zip(*texts, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _between(gap: _Gap, calls: MatchedCalls, classes: Sequence[str]) -> int:
    """The call that runs what is between two other calls."""
    ending, starting = calls.chain(gap.before), calls.chain(gap.after)
    if len(ending) == 1 or len(starting) == 1:  # before the first, or after the last
        return _outermost(ending + starting[1:], calls, classes)
    shared = sum(before == after for before, after in zip(ending, starting, strict=False))
    around = ending[shared - 1]
    block = ending[shared] if len(ending) > shared + 1 else around
    follower = starting[shared] if len(starting) > shared else around
    name = _class(around, calls, classes)
    again = _class(block, calls, classes) == _class(follower, calls, classes)
    return block if name in CONTAINERS or again else around


def _outermost(chain: list[int], calls: MatchedCalls, classes: Sequence[str]) -> int:
    """The outermost call of a chain that can run operators of its own."""
    inner = [call for call in chain[1:] if _class(call, calls, classes) not in CONTAINERS]
    return inner[0] if inner else 0


def _class(call: int, calls: MatchedCalls, classes: Sequence[str]) -> str:
    module = calls.module[call]
    return classes[module] if module >= 0 else ""
