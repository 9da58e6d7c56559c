"""Rows that run through the same things in one order."""

import numpy as np
import pytest

from stepscope.facts.annotate.links.subsequences import common_positions
from stepscope.facts.annotate.modules.matching.matching import repeated_rows


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ([1, 2, 4], [1, 2, 4], [[0, 0], [1, 1], [2, 2]]),
        ([1, 2, 4], [1, 4], [[0, 0], [2, 1]]),
        ([1, 4], [1, 2, 4], [[0, 0], [1, 2]]),
        ([1, 2], [1, 1, 2, 2], [[0, 0], [1, 2]]),
        ([1], [2], []),
        ([], [1], []),
        ([1], [], []),
    ],
)
def test_the_longest_common_row(first, second, pairs):
    assert common_positions(np.array(first), np.array(second)).tolist() == pairs


@pytest.mark.parametrize(
    ("forward", "again", "nodes", "repeats"),
    [
        pytest.param("abcab", "ab", [], [3, 4], id="the last place of equal ones"),
        pytest.param("abcab", "ab|ab", [7], [3, 4, 0, 1], id="then the one before"),
        pytest.param("abcde", "xbcd", [], [-1, 1, 2, 3], id="what is new at the edge repeats none"),
        pytest.param("abcde", "bxd", [], [1, 2, 3], id="what differs inside keeps its place"),
        pytest.param("abc", "xyz", [], [-1, -1, -1], id="another row repeats nothing"),
        pytest.param("", "ab", [], [-1, -1], id="nor does any where there was none"),
    ],
)
def test_recomputed_rows_are_found_in_the_forward_pass(forward, again, nodes, repeats):
    names = np.array([ord(name) for name in forward + again])
    rows = [len(forward) + place for place, name in enumerate(again) if name != "|"]

    found = repeated_rows(names, np.array(nodes), np.arange(len(forward)), np.array(rows))

    assert found.tolist() == repeats
