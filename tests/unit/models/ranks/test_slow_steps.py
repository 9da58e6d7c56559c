"""In which steps a rank is slow: all, a stretch, again and again, or by chance."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.models.ranks.slow_groups import SlowSteps, grown, is_no_chance, pausing_in_turn, slow_steps
from stepscope.models.ranks.stragglers import ranks_in_words, steps_in_words


def mask(text: str) -> np.ndarray:
    """Drawn steps, `#` for a slow one."""
    return np.array([letter == "#" for letter in text])


def drawn(steps: SlowSteps | None) -> str:
    return "" if steps is None else "".join(".#"[slow] for slow in steps.when.tolist())


@pytest.mark.parametrize(
    ("slow", "when", "recurs"),
    [
        ("##########", "##########", False),
        ("####.####.", "##########", False),
        ("..####....", "..####....", False),
        ("..###.####.....", "..########.....", False),
        ("#....#....#....", "#....#....#....", True),
        ("..#....#..", "..#....#..", True),
        ("..........", "", False),
    ],
    ids=["all", "nearly all", "a stretch", "a stretch with a gap", "again and again", "twice", "never"],
)
def test_which_steps_are_slow(slow: str, when: str, recurs: bool) -> None:
    found = slow_steps(mask(slow))
    assert (drawn(found), bool(found and found.recurs)) == (when, recurs)


def test_the_period_is_that_of_equal_gaps() -> None:
    found = [slow_steps(mask(one)) for one in ("#....#....#....", "#....#..#......")]
    assert [one.period for one in found if one] == [5, 0]


def test_a_rank_that_is_slow_as_often_as_others_is_no_exception() -> None:
    dice = np.random.default_rng(1)
    slow = dice.random((64, 48)) < 0.05
    assert not any(stands_out(slow, row) for row in range(64))
    slow[7, ::3] = True
    assert [row for row in range(64) if stands_out(slow, row)] == [7]


def stands_out(slow: np.ndarray, row: int) -> bool:
    steps = slow_steps(slow[row])
    return steps is not None and is_no_chance(slow, [row], steps, len(slow))


def test_a_growing_excess_is_named_from_where_it_begins() -> None:
    excess = np.maximum(np.arange(20) - 6.0, 0)
    steps = SlowSteps(excess > 4)
    found = grown(steps, excess)
    assert (found.grows, drawn(found)) == (True, "......##############")
    assert grown(steps, np.where(excess > 4, 8.0, 0)) == steps


@pytest.mark.parametrize(
    ("excess", "expected"),
    [
        ([0, 9, 8, 9, 10, 9, 8, 9], ".#######"),  # seven of eight steps: since the second
        ([1, 2, 9, 8, 9, 9, 9, 9, 9, 9, 9], "..#########"),
        ([6, 9, 8, 9, 10, 9, 8, 9], "########"),
        ([2, 9, 3, 7, 10, 4, 8, 9], "########"),  # an unsteady rank
        ([9, 8, 9, 0, 10, 9, 8, 9], "########"),
    ],
)
def test_an_excess_in_nearly_all_steps_is_named_from_where_it_begins(
    excess: list[int], expected: str
) -> None:
    found = grown(SlowSteps(np.ones(len(excess), np.bool_)), np.array(excess, np.float64))
    assert (found.grows, drawn(found)) == (False, expected)


def test_ranks_in_words() -> None:
    assert [
        ranks_in_words((5,), ""),
        ranks_in_words((5,), "node-0"),
        ranks_in_words((1, 4), ""),
        ranks_in_words((8, 9, 10, 11), "node-1"),
        ranks_in_words(tuple(range(7, 1024, 8)), ""),  # a stage of a large job
    ] == ["Rank 5", "Rank 5 (node-0)", "Ranks 1, 4", "Ranks 8-11 (node-1)", "Ranks 7, 15, 23, 31, 39, 47, …"]


def test_steps_in_words() -> None:
    assert [
        steps_in_words(None),
        steps_in_words((2, 9)),
        steps_in_words((3, 43), 5, 10),
        steps_in_words((0, 45), 7),
    ] == ["every step", "steps 2–9", "every 10th step (3–43)", "7 of steps 0–45"]


def test_pauses_in_turn_are_of_many_ranks_more_than_once() -> None:
    dice = np.random.default_rng(0)
    pauses = dice.random((60, 48)) < 0.15
    of_a_third = pauses & (np.arange(60) % 3 == 0)[:, None]
    of_two = pauses & (np.arange(60) < 2)[:, None]
    assert len(pausing_in_turn(pauses)) == 60
    assert len(pausing_in_turn(of_a_third)) == 20
    assert not pausing_in_turn(of_two)
    assert not pausing_in_turn(np.eye(16, 4, dtype=bool) | np.eye(16, 4, -8, dtype=bool))  # once
