"""Align two sequences of elements that occur in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.arrays import Ids32, Mask, Rows


def common_positions(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """The longest sequence of position pairs, ascending in both, whose elements share a bit.

    Args:
        first, second: bits of each element.

    Returns:
        (position in `first`, position in `second`) for each pair.

    Example:
        >>> common_positions([1, 2, 4], [2, 8, 4])
        [(1, 0), (2, 2)]

    Source: the longest common subsequence, Wagner and Fischer 1974; one row of the table at a time.
    """
    shared = _share_bit(first, second)
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for row, match in enumerate(shared):
        best = np.maximum(lengths[row, 1:], lengths[row, :-1] + match)
        lengths[row + 1, 1:] = np.maximum.accumulate(best)
    return _backtrack(lengths)


def with_neighbors(
    pairs: Sequence[tuple[int, int]], first: Sequence[int], second: Sequence[int]
) -> list[tuple[int, int]]:
    """Extend pairs: unpaired elements of `second` join the adjacent pair if they share a bit.

    Args:
        pairs: as from `common_positions`.
        first, second: bits of each element.

    Example:
        >>> with_neighbors([(0, 1)], [2], [2, 2, 4])
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


def _share_bit(first: Sequence[int], second: Sequence[int]) -> Mask:
    """Whether elements share a bit; distinct values are few, sequences may be long."""
    rows, row_of = _distinct(first)
    columns, column_of = _distinct(second)
    table = np.array([[bool(row & column) for column in columns] for row in rows], np.bool_)
    table = table.reshape(len(rows), len(columns))
    return table[row_of][:, column_of]


def _distinct(values: Sequence[int]) -> tuple[list[int], Rows]:
    index: dict[int, int] = {}
    codes = [index.setdefault(value, len(index)) for value in values]
    return list(index), np.array(codes, np.intp)


def _backtrack(lengths: Ids32) -> list[tuple[int, int]]:
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
