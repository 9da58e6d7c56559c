"""The slices that stand for the inside of an event, against what its parents say one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.timeline.event_index import Index

event = st.tuples(st.sampled_from(["main", "other"]), st.integers(0, 40), st.integers(1, 20))


def index_of(events: list[tuple[str, int, int]]) -> Index:
    """Launches that are drawn at random places, each with a kernel."""
    lines = [
        f"{track} | {start} {start + length} | cudaLaunchKernel | corr={number}\n"
        f"stream 7 | {50 + number} {51 + number} | kernel | corr={number}"
        for number, (track, start, length) in enumerate(events)
    ]
    return Index(annotate(drawn_trace("\n".join(lines))))


def around(index: Index, event: int) -> set[int]:
    """An event and all that it lies in."""
    found = set()
    while event >= 0:
        found.add(event)
        event = int(index.parent[event])
    return found


@given(st.lists(event, min_size=1, max_size=25))
def test_slices_hold_what_the_parents_say(events: list[tuple[str, int, int]]) -> None:
    index = index_of(events)
    for one in range(len(index.order)):
        _, children = index.children(np.array([one]))
        assert sorted(children) == [e for e in range(len(index.order)) if index.parent[e] == one]
        first, end = index.inside(index.order[index.place[one] : index.place[one] + 1])
        inside = {int(e) for e in index.order[int(first[0]) : int(end[0])]}
        assert inside == {e for e in range(len(index.order)) if one in around(index, e)}


@given(st.lists(event, min_size=1, max_size=25))
def test_device_work_is_found_by_where_its_launch_is(events: list[tuple[str, int, int]]) -> None:
    index = index_of(events)
    rows = index.in_order(range(len(index.order)))
    found = set(zip(*(part.tolist() for part in index.device_work(rows)), strict=True))
    launched = [int(work) for work in index.launched]
    expected = {
        (number, work)
        for number, row in enumerate(rows.tolist())
        for work in launched
        if row in around(index, int(index.launch[work])) or row == work
    }
    assert found == expected
