"""Which elements of two rows correspond, if both run through the same things in one order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def common_positions(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """The longest row of pairs of positions, ascending in both, whose elements share a bit.

    Args:
        first, second: bits of each element.

    Returns:
        (position in `first`, position in `second`) for each pair.

    Example:
        >>> common_positions([1, 2, 4], [2, 8, 4])
        [(1, 0), (2, 2)]

    Source: the longest common subsequence, Wagner and Fischer 1974; a row of the table at a time.
    """
    alike = _alike(first, second)
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for row, match in enumerate(alike):
        best = np.maximum(lengths[row, 1:], lengths[row, :-1] + match)
        lengths[row + 1, 1:] = np.maximum.accumulate(best)
    return _traced(lengths)


def with_neighbours(
    pairs: Sequence[tuple[int, int]], first: Sequence[int], second: Sequence[int]
) -> list[tuple[int, int]]:
    """The pairs, and each further element of `second` with what the pair beside it has, if alike.

    Args:
        pairs: as from `common_positions`.
        first, second: bits of each element.

    Example:
        >>> with_neighbours([(0, 1)], [2], [2, 2, 4])
        [(0, 0), (0, 1)]
    """
    partner = {position: other for other, position in pairs}
    for order in (range(len(second)), reversed(range(len(second)))):
        near = -1
        for position in order:
            near = partner.get(position, near)
            if near >= 0 and first[near] & second[position]:
                partner.setdefault(position, near)
    return [(other, position) for position, other in sorted(partner.items())]


def _alike(first: Sequence[int], second: Sequence[int]) -> NDArray[np.bool_]:
    """Whether elements share a bit; distinct values are few, rows may be long."""
    ones, one_of = _distinct(first)
    others, other_of = _distinct(second)
    table = np.array([[bool(one & other) for other in others] for one in ones], np.bool_)
    table = table.reshape(len(ones), len(others))
    return table[one_of][:, other_of]


def _distinct(values: Sequence[int]) -> tuple[list[int], NDArray[np.intp]]:
    index: dict[int, int] = {}
    codes = [index.setdefault(value, len(index)) for value in values]
    return list(index), np.array(codes, np.intp)


def _traced(lengths: NDArray[np.int32]) -> list[tuple[int, int]]:
    row, column = lengths.shape[0] - 1, lengths.shape[1] - 1
    pairs = []
    while row and column:
        here = lengths[row, column]
        if here == lengths[row, column - 1]:
            column -= 1
        elif here == lengths[row - 1, column]:
            row -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]
