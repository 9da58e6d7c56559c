"""The positions of measured lines in the current text.

Results belong to the text that was measured. While it is edited they follow lines that only moved;
a line that was changed itself keeps its place but is stale, and is fresh again once undone. Nothing
is tracked from edit to edit: two texts are compared, so no sequence of edits can lead astray.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_MOST_LINES = 3000  # of what differs; beyond it an alignment takes longer than a pause in typing


class MappedLine(NamedTuple):
    """A measured line in the current text.

    Attributes:
        line: its number from 0.
        stale: whether it reads differently now.
    """

    line: int
    stale: bool


def map_lines(measured: Sequence[str], current: Sequence[str]) -> dict[int, MappedLine]:
    """Find each measured line in the current text.

    Args:
        measured: lines of the text that was measured, without their ends.
        current: lines of the text as it is now.

    Returns:
        MappedLine of each measured line by its number from 0; lines that were deleted are absent.

    Example:
        >>> map_lines(["a", "b"], ["new", "a", "c"])
        {0: MappedLine(line=1, stale=False), 1: MappedLine(line=2, stale=True)}
    """
    head = _common(measured, current)
    tail = _common(measured[head:][::-1], current[head:][::-1])
    found = {line: MappedLine(line, False) for line in range(head)}
    shift = len(current) - len(measured)
    for line in range(len(measured) - tail, len(measured)):
        found[line] = MappedLine(line + shift, False)
    old, new = measured[head : len(measured) - tail], current[head : len(current) - tail]
    for line, place in _between(old, new).items():
        found[line + head] = MappedLine(place.line + head, place.stale)
    return dict(sorted(found.items()))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of common lines at the beginning of two texts."""
    shortest = min(len(one), len(other))
    return next((line for line in range(shortest) if one[line] != other[line]), shortest)


def _between(old: Sequence[str], new: Sequence[str]) -> dict[int, MappedLine]:
    if max(len(old), len(new)) > _MOST_LINES:
        return _changed(range(len(old)), range(len(new)))
    found: dict[int, MappedLine] = {}
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, begin, end, to, to_end in matcher.get_opcodes():
        if kind == "equal":
            found |= {begin + row: MappedLine(to + row, False) for row in range(end - begin)}
        elif kind == "replace":
            found |= _changed(range(begin, end), range(to, to_end))
    return found


def _changed(old: range, new: range) -> dict[int, MappedLine]:
    """Changed lines keep their order; those without a counterpart are gone."""
    return {line: MappedLine(now, True) for line, now in zip(old, new, strict=False)}
