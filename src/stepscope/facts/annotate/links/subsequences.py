"""Common subsequences of two sequences."""

import numpy as np

from stepscope.base.arrays import Ids, IntArray


def common_positions(first: IntArray, second: IntArray) -> Ids:
    """The longest sequence of position pairs, ascending in both, whose elements are equal.

    Of equally long ones, that with the earliest elements of `second`.

    Returns:
        A position in `first` and one in `second` for each pair, shape (pairs, 2).

    Source: the longest common subsequence, Wagner and Fischer 1974; one row of the table at a time.
    """
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for row, value in enumerate(first):
        best = np.maximum(lengths[row, 1:], lengths[row, :-1] + (second == value))
        lengths[row + 1, 1:] = np.maximum.accumulate(best)
    return _backtrack(lengths)


def _backtrack(lengths: IntArray) -> Ids:
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
    return np.array(pairs[::-1], np.int64).reshape(-1, 2)
