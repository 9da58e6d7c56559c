"""Which operations are put together where nothing names them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.facts.timeline.operation import TINY
from stepscope.facts.timeline.sections import SiblingOperations, find_sections


def sections(text: str, parent: int | None = None, tiny: float = TINY) -> list[str]:
    """Operations drawn as `name:cpu/device` (a name with a digit is a block) and cut by ` | `."""
    words = text.split()
    names, times = zip(*(word.split(":") for word in words), strict=True)
    cpu, device = zip(*(map(int, (time + "/0").split("/")[:2]) for time in times), strict=True)
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    operations = SiblingOperations(
        name=np.array([codes[name] for name in names]),
        block=np.array([ord(name[0]) if name[-1].isdigit() else -1 for name in names]),
        cpu_ns=np.array(cpu),
        device_ns=np.array(device),
    )
    parent_ns = np.array([parent or max(sum(cpu), sum(device))])
    bounds = find_sections(operations, np.array([0, len(words)]), parent_ns, tiny)
    return [" ".join(names[a:b]) for a, b in pairwise(bounds)]


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        pytest.param("a:40 b:60", ["a", "b"], id="large ones stand alone"),
        pytest.param("a:1 b:1 c:98", ["a b", "c"], id="tiny ones in a row are a section"),
        pytest.param("a:6 b:6 c:88", ["a", "b", "c"], id="tiny is below 5 % of what is around"),
        pytest.param("a:1 b:50 c:1 d:48", ["a", "b", "c", "d"], id="one tiny one stands alone"),
        pytest.param("a:30 a:30 b:40", ["a a", "b"], id="one name in a row is a section"),
        pytest.param("a:4 b:4 c:4 d:88", ["a b c", "d"], id="tiny ones may be large together"),
        pytest.param(
            "a:3 a:3 b:1 c:1 d:92",
            ["a a", "b c", "d"],
            id="what is large by being repeated is not hidden among tiny ones",
        ),
        pytest.param("a:1 a:1 b:1 c:97", ["a a b", "c"], id="what is tiny even repeated is"),
        pytest.param("a:1/50 b:1 c:1 d:97", ["a", "b c", "d"], id="tiny on both sides is tiny"),
        pytest.param(
            "h0:2 h1:2 h2:2 h3:2 h4:2 a:1 b:1 z:88",
            ["h0 h1 h2 h3 h4", "a b", "z"],
            id="copies of a block are put together before tiny ones are",
        ),
        pytest.param(
            "h0:20 h1:20 h2:20 h3:20 z:20",
            ["h0", "h1", "h2", "h3", "z"],
            id="four copies are as quickly compared side by side",
        ),
        pytest.param("a:25 a:25 a:25 a:25", ["a", "a", "a", "a"], id="a section does not repeat its parent"),
    ],
)
def test_rules(operations: str, found: list[str]) -> None:
    assert sections(operations) == found


def test_the_threshold_is_a_share_of_the_parent() -> None:
    assert sections("a:4 b:4 c:92") == ["a b", "c"]
    assert sections("a:4 b:4 c:92", tiny=0.03) == ["a", "b", "c"]
    assert sections("a:4 b:4 c:92", parent=50) == ["a", "b", "c"]


def test_many_tiny_ones_alone_are_cut_into_pieces_that_reach_the_threshold() -> None:
    found = sections(" ".join(f"{a}{b}:1" for a in "abcdefghij" for b in "abcdefghij"))
    assert [len(piece.split()) for piece in found] == [5] * 20


def test_a_large_one_among_many_stands_alone() -> None:
    many = " ".join(["a:1"] * 30)
    found = sections(f"{many} a:9000 {many}")
    assert [len(piece.split()) for piece in found] == [30, 1, 30]


def test_a_pattern_that_repeats_among_many_operations_is_put_together() -> None:
    loop = "read:1 decode:3 crop:2"
    assert sections(f"a:50 {' '.join([loop] * 15)} z:10") == ["a", " ".join(["read decode crop"] * 15), "z"]


def test_a_pattern_that_is_all_there_is_is_cut_into_its_copies() -> None:
    assert sections(" ".join(["read:1 decode:3 crop:2"] * 15)) == ["read decode crop"] * 15


times = st.integers(0, 1000)
operation = st.tuples(st.sampled_from("abc"), times, times)


lane = st.tuples(st.lists(operation, min_size=1, max_size=90), st.integers(0, 20_000))


def facts_of(drawn: list[tuple[str, int, int]]) -> SiblingOperations:
    return SiblingOperations(
        name=np.array([ord(name) for name, _, _ in drawn], np.int64),
        block=np.array([1 if name == "c" else -1 for name, _, _ in drawn], np.int64),
        cpu_ns=np.array([cpu for _, cpu, _ in drawn], np.int64),
        device_ns=np.array([device for _, _, device in drawn], np.int64),
    )


@given(lane)
def test_sections_partition_what_is_there_and_never_repeat_it(
    drawn: tuple[list[tuple[str, int, int]], int],
) -> None:
    operations, parent = drawn
    count = len(operations)
    bounds = find_sections(facts_of(operations), np.array([0, count]), np.array([parent]))
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert (np.diff(bounds) > 0).all()
    assert count < 2 or len(bounds) > 2


@given(st.lists(lane, min_size=1, max_size=4))
def test_lanes_are_cut_together_as_each_is_alone(lanes: list[tuple[list[tuple[str, int, int]], int]]) -> None:
    first = np.append(0, np.cumsum([len(operations) for operations, _ in lanes]))
    parents = np.array([parent for _, parent in lanes])
    together = find_sections(facts_of([one for drawn, _ in lanes for one in drawn]), first, parents)
    alone = [
        start + find_sections(facts_of(drawn), np.array([0, len(drawn)]), np.array([parent]))[:-1]
        for (drawn, parent), start in zip(lanes, first, strict=False)
    ]
    assert together.tolist() == [*np.concatenate(alone).tolist(), first[-1]]
