from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import nesting as oracle

from stepscope.trace.nesting import (
    depths,
    enclosing,
    inherit,
    last_started,
    outermost,
    parents,
    passed_down,
    self_times,
    totals_inside,
)

Rows = list[tuple[int, int, int]]
rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 12)), max_size=10).map(
    lambda found: sorted(found, key=lambda row: (row[1], -row[2]))
)
tolerances = st.integers(0, 2)


def well_nested(events: Rows) -> Rows:
    """The events without those that overlap an earlier one in part."""
    kept: Rows = []
    for track, start, length in events:
        if not any(t == track and s < start < s + d < start + length for t, s, d in kept):
            kept.append((track, start, length))
    return kept


def columns(events: Rows) -> tuple[NDArray[np.int64], ...]:
    """Track, start and duration."""
    return tuple(np.array(events, np.int64).reshape(-1, 3).T)


def around(outer: tuple[int, int, int], inner: tuple[int, int, int], tolerance: int) -> bool:
    (track, start, length), (its_track, its_start, its_length) = outer, inner
    ends_late = start + length + tolerance >= its_start + its_length
    overlaps = start + length > its_start or start == its_start
    return track == its_track and ends_late and overlaps


def brute_parents(events: Rows, tolerance: int) -> list[int]:
    """The nearest earlier event that is around, looked for one by one."""
    return [
        next((i for i in reversed(range(n)) if around(events[i], event, tolerance)), -1)
        for n, event in enumerate(events)
    ]


def test_drawn_by_hand() -> None:
    events = [(0, 0, 10), (0, 0, 4), (1, 1, 2), (0, 2, 2), (0, 4, 8), (0, 5, 1)]
    #        ends later than the first: a sibling ────────────^
    track, start, duration = columns(events)
    parent = parents(track, start, duration, 0)
    assert parent.tolist() == [-1, 0, -1, 1, -1, 4]
    assert depths(parent).tolist() == [0, 1, 0, 2, 0, 1]
    assert self_times(parent, start, duration).tolist() == [6, 2, 2, 2, 7, 1]
    assert inherit(parent, np.array([7, -1, -1, 9, -1, 5])).tolist() == [7, 7, -1, 9, -1, 5]
    assert totals_inside(parent, np.array([1, 2, 4, 8, 16, 32])).tolist() == [11, 10, 4, 8, 48, 32]
    chosen = np.array([False, True, True, True, False, True])
    assert outermost(parent, chosen).tolist() == [False, True, True, False, False, True]
    assert outermost(parent, chosen & False).tolist() == [False] * 6
    # Code 1 is allowed in code 0 and in none, 0 in none.
    allowed = np.array([[False, True], [False, False], [True, True]])
    passed = passed_down(parent, np.array([0, 1, 0, 0, -1, 1], np.int8), allowed)
    assert (passed.tolist(), passed.dtype) == ([0, 1, 0, 1, -1, 1], np.int8)
    asked = np.array([0, 0, 0, 0, 1, 1, 2]), np.array([-1, 3, 5, 13, 3, 4, 3])
    assert enclosing(*asked, track, start, duration, parent).tolist() == [-1, 3, 5, -1, 2, -1, -1]
    assert last_started(*asked, track, start).tolist() == [-1, 3, 5, 5, 2, 2, -1]


def test_a_track_has_no_negative_number() -> None:
    with pytest.raises(ValueError, match="found a negative one"):
        last_started(np.array([0]), np.array([0]), np.array([0, -1]), np.array([0, 1]))


def test_rounding_is_forgiven_within_the_tolerance() -> None:
    track, start, duration = columns([(0, 0, 10), (0, 5, 6)])
    assert parents(track, start, duration, 0).tolist() == [-1, -1]
    assert parents(track, start, duration, 1).tolist() == [-1, 0]


def test_neighbors_that_touch_are_siblings() -> None:
    track, start, duration = columns([(0, 0, 5), (0, 5, 1)])
    assert parents(track, start, duration, 2).tolist() == [-1, -1]


@given(rows, tolerances)
def test_parents_are_those_found_one_by_one(events: Rows, tolerance: int) -> None:
    track, start, duration = columns(events)
    assert parents(track, start, duration, tolerance).tolist() == brute_parents(events, tolerance)


@given(rows.map(well_nested))
def test_self_times_add_up_to_those_of_the_roots(events: Rows) -> None:
    track, start, duration = columns(events)
    parent = parents(track, start, duration, 0)
    assert self_times(parent, start, duration).sum() == duration[parent < 0].sum()


@given(rows.map(well_nested), st.integers(0, 2), st.integers(0, 26))
def test_enclosing_is_the_innermost_that_runs(events: Rows, lane: int, time: int) -> None:
    track, start, duration = columns(events)
    parent = parents(track, start, duration, 0)
    found = enclosing(np.array([lane]), np.array([time]), track, start, duration, parent)
    running = [n for n, (t, s, d) in enumerate(events) if t == lane and s <= time <= s + d]
    assert found.tolist() == [max(running, default=-1)]


@given(rows, st.data())
def test_inherit_takes_the_innermost_value(events: Rows, data: st.DataObject) -> None:
    track, start, duration = columns(events)
    parent = parents(track, start, duration, 0)
    own = data.draw(st.lists(st.integers(-1, 3), min_size=len(events), max_size=len(events)))
    expected = []
    for event in range(len(events)):
        while event >= 0 and own[event] < 0:
            event = int(parent[event])
        expected.append(own[event] if event >= 0 else -1)
    assert inherit(parent, np.array(own, np.int64)).tolist() == expected


@given(rows, tolerances, st.data())
def test_all_are_those_of_the_oracle(events: Rows, tolerance: int, data: st.DataObject) -> None:
    """Also where events overlap in part."""
    track, start, duration = columns(events)
    parent = oracle.parents(track, start, duration, tolerance)
    assert parents(track, start, duration, tolerance).tolist() == parent.tolist()
    selves = oracle.self_times(parent, start, duration)
    assert self_times(parent, start, duration).tolist() == selves.tolist()
    hold_alike(parent, data)


@given(st.lists(st.integers(-1, 9), max_size=10), st.data())
def test_events_may_come_before_those_around_them(above: list[int], data: st.DataObject) -> None:
    """Of a forest in any order: number `n` is above all numbers below it."""
    count = len(above)
    parent = np.array([outer if n < outer < count else -1 for n, outer in enumerate(above)])
    hold_alike(parent.astype(np.int32), data)


def hold_alike(parent: NDArray[np.int32], data: st.DataObject) -> None:
    """What goes from event to event is that of the oracle."""
    codes = st.lists(st.integers(-1, 1), min_size=len(parent), max_size=len(parent))
    own = np.array(data.draw(codes), np.int64)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6))).reshape(3, 2)
    assert depths(parent).tolist() == oracle.depths(parent).tolist()
    assert inherit(parent, own).tolist() == oracle.inherit(parent, own).tolist()
    assert totals_inside(parent, own).tolist() == oracle.totals_inside(parent, own).tolist()
    passed = own.astype(np.int8)
    expected = oracle.passed_down(parent, passed, allowed).tolist()
    assert passed_down(parent, passed, allowed).tolist() == expected


def test_events_around_each_other_are_an_error() -> None:
    with pytest.raises(MemoryError, match="around each other"):
        depths(np.array([1, 0], np.int32))


@given(rows, st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 30)), max_size=30))
def test_events_at_times_are_found_alike(events: Rows, asked: list[tuple[int, int]]) -> None:
    track, start, duration = columns(events)
    parent = oracle.parents(track, start, duration, 0)
    lanes, times = np.array(asked, np.int64).reshape(-1, 2).T
    expected = oracle.enclosing(lanes, times, track, start, duration, parent)
    found = enclosing(lanes, times, track, start, duration, parent)
    assert found.tolist() == expected.tolist()
    started = oracle.last_started(lanes, times, track, start)
    assert last_started(lanes, times, track, start).tolist() == started.tolist()
