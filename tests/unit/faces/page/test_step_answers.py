"""A whole step in one answer, as a single file holds it."""

from __future__ import annotations

import pytest
import step_fixture
from serving import opened

from stepscope.faces.page.step_answers import details_of_levels, step_of_levels
from stepscope.faces.page.trace_view import TraceView


@pytest.fixture
def view() -> TraceView:
    return opened(step_fixture.STEP, step_fixture.MODEL)


def test_the_pages_test_reads_what_the_server_answers() -> None:
    """That test puts levels and details together from columns, and compares."""
    known = step_fixture.FILE.read_text("utf-8")
    assert known == step_fixture.text(), (
        "write it again: PYTHONPATH=src python tests/unit/faces/page/step_fixture.py"
    )


def test_every_level_is_there_and_those_that_hide_threads_twice(view: TraceView) -> None:
    answer = step_of_levels(view, "s1.0", view.timeline.open_all("s1.0"))
    lists = answer.levels.lists
    openings = view.timeline.open_all("s1.0")
    assert len(lists) - lists.count(1) == len(openings)
    assert lists.count(1) == lists.count(2) == sum(one.shown.hides for one in openings) > 0


def test_each_raw_event_has_the_place_of_the_smallest_operation_that_holds_it(view: TraceView) -> None:
    answer = step_of_levels(view, "s1.0", view.timeline.open_all("s1.0"))
    openings = view.timeline.open_all("s1.0")
    paths = ["s1.0", *(path for one in openings for path in one.every.paths)]
    events = answer.events
    found = [paths[place] for place in events.place]
    assert found == [view.timeline.path_of(event) for event in events.event]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_the_costliest_levels_are_chosen_with_those_around_them(view: TraceView, most: int) -> None:
    kept = view.timeline.open_all("s1.0", most)
    paths = {one.every.path for one in kept}
    assert len(kept) == most
    assert all(path[:-1] in paths for path in paths if len(path) > 1)
    answer = step_of_levels(view, "s1.0", kept)
    assert sum(lists != 1 for lists in answer.levels.lists) == most
    details = details_of_levels(view, "s1.0", kept)
    assert len(details.columns["name"].value) == 1 + sum(len(one.every) for one in kept)


def test_values_that_operations_share_are_there_once(view: TraceView) -> None:
    column = details_of_levels(view, "s1.0", view.timeline.open_all("s1.0")).columns["category"]
    assert len(column.values) == len(set(column.values)) < len(column.value)
