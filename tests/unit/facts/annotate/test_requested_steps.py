"""The error for a rank or a step that a trace does not have."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate.steps.step_table import number_list


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0"), ([1, 2], "1, 2"), ([*range(1024)], "0 to 1023"), ([0, 3, 4, 5, 9, 10], "0, 3 to 5, 9, 10")],
)
def test_runs_of_numbers_are_named_by_their_ends(numbers: list[int], text: str) -> None:
    assert number_list(numbers) == text
