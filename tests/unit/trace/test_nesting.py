from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepscope.trace.nesting import (
    compiled_depths,
    compiled_enclosing,
    compiled_inherit,
    compiled_parents,
    compiled_self_times,
    depths,
    depths_in_python,
    enclosing,
    enclosing_in_python,
    inherit,
    inherit_in_python,
    last_started,
    last_started_in_python,
    parents,
    parents_in_python,
    self_times,
    self_times_in_python,
)

Rows = list[tuple[int, int, int]]
rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 12)), max_size=10
).map(lambda found: sorted(found, key=lambda row: (row[1], -row[2])))
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
def test_compiled_and_in_python_are_one(
    library: Path, events: Rows, tolerance: int, data: st.DataObject
) -> None:
    """Also where events overlap in part."""
    track, start, duration = columns(events)
    parent = parents_in_python(track, start, duration, tolerance)
    compiled = compiled_parents(track, start, duration, tolerance, library)
    assert compiled is not None
    assert compiled.tolist() == parent.tolist()
    selves = compiled_self_times(parent, start, duration, library)
    assert selves is not None
    assert selves.tolist() == self_times_in_python(parent, start, duration).tolist()
    depth = compiled_depths(parent, library)
    assert depth is not None
    assert depth.tolist() == depths_in_python(parent).tolist()
    own = np.array(data.draw(st.lists(st.integers(-2, 3), min_size=len(events),
                                      max_size=len(events))), np.int64)  # fmt: skip
    value = compiled_inherit(parent, own, library)
    assert value is not None
    assert value.tolist() == inherit_in_python(parent, own).tolist()


def test_what_the_library_does_not_take_is_done_in_python(library: Path) -> None:
    """Tracks of any number, and an event before the one around it."""
    track = np.array([-5, 1 << 40, -5])
    start, duration = np.array([0, 1, 2]), np.array([9, 3, 2])
    assert compiled_parents(track, start, duration, 0, library) is None
    assert parents(track, start, duration, 0).tolist() == [-1, -1, 0]
    late = np.array([1, -1], np.int32)
    assert compiled_inherit(late, np.array([-1, 7]), library) is None
    assert inherit(late, np.array([-1, 7])).tolist() == [7, 7]
    assert compiled_depths(late, library) is None
    assert depths(late).tolist() == [1, 0]


@given(rows, st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 30)), max_size=30))
def test_events_at_times_are_found_alike(
    library: Path, events: Rows, asked: list[tuple[int, int]]
) -> None:
    track, start, duration = columns(events)
    parent = parents_in_python(track, start, duration, 0)
    lanes, times = np.array(asked, np.int64).reshape(-1, 2).T
    expected = enclosing_in_python(lanes, times, track, start, duration, parent)
    found = compiled_enclosing(lanes, times, track, start, duration, parent, library)
    assert (expected if found is None else found).tolist() == expected.tolist()
    assert found is not None or not len(track)
    started = last_started_in_python(lanes, times, track, start)
    assert last_started(lanes, times, track, start).tolist() == started.tolist()
