"""The slices that stand for the inside of an event, against what its parents say one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.facts.annotate import annotate
from stepscope.facts.timeline.event_index import Index
from stepscope.testing import drawn_trace
from stepscope.trace.sets import numbered

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


def test_steps_of_any_number_take_no_memory_for_those_between() -> None:
    step = "main | {0} {1} | ProfilerStep#{2}\nmain | {3} {4} | aten::mm\n"
    numbers = (400_000_000, 400_000_001)
    text = "".join(
        step.format(100 * at, 100 * at + 90, number, 100 * at + 10, 100 * at + 60)
        for at, number in enumerate(numbers)
    )
    index = Index(annotate(drawn_trace(text)))
    tracemalloc.start()
    found = [index.of_step(number, 0).tolist() for number in (*numbers, 5)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [[0, 1], [2, 3], []]
    assert peak < 1 << 20


def test_a_few_of_many_possible_keys_take_no_memory_for_the_others() -> None:
    keys = np.array([7, 400_000_000, 7])
    tracemalloc.start()
    found, number = numbered(keys, 400_000_001)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.tolist(), number.tolist()) == ([7, 400_000_000], [0, 1, 0])
    assert peak < 1 << 20
