"""Which patterns of names repeat back to back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.facts.timeline.sections import find_repeats, whole_period


def repeats(names: str) -> list[tuple[str, int, int]]:
    """Pattern, first place and count of each repeat among operations named by one letter."""
    found = find_repeats(np.array([ord(name) for name in names], np.int64))
    return [(names[one.first : one.first + one.period], one.first, one.count) for one in found]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("abababx", [("ab", 0, 3)]),
        ("xabcabcabcay", [("abc", 1, 3)]),
        ("abab", []),
        ("aaaaaa", []),
        ("aabaabaab", [("aab", 0, 3)]),
        ("abababxcdecdecde", [("ab", 0, 3), ("cde", 7, 3)]),
        ("abababab", [("ab", 0, 4)]),
        ("", []),
    ],
)
def test_patterns(names: str, found: list[tuple[str, int, int]]) -> None:
    assert repeats(names) == found


@given(st.text("abc", max_size=60))
def test_each_is_what_it_says_and_none_overlap(names: str) -> None:
    end = 0
    for pattern, first, count in repeats(names):
        assert first >= end
        end = first + len(pattern) * count
        assert names[first:end] == pattern * count


@given(st.text("ab", min_size=1, max_size=8), st.integers(1, 12))
def test_the_period_of_all_names_is_that_of_the_repeat_that_is_all_there_is(pattern: str, count: int) -> None:
    names = np.array([ord(name) for name in pattern * count], np.int64)
    found = find_repeats(names)
    whole = len(found) == 1 and found[0].period * found[0].count == len(names)
    assert whole_period(names) == (found[0].period if whole else 1)
