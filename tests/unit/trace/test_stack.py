"""Tables put one after the other: text over one list of values, references renumbered."""

from __future__ import annotations

from stepscope.trace.concat import stacked
from stepscope.trace.schema import EVENTS, STEPS
from stepscope.trace.table import Table

FIRST = Table(EVENTS, {"name": ["step", "mm"], "category": ["annotation", "cpu_op"], "parent": [-1, 0]})
SECOND = Table(EVENTS, {"name": ["mm", "add"], "category": ["cpu_op", "cpu_op"], "parent": [-1, 0]})


def test_rows_keep_their_order_and_text_its_values() -> None:
    both = stacked([FIRST, SECOND])
    assert list(both.text("name")) == ["step", "mm", "mm", "add"]
    assert list(both.text("name").values) == ["step", "mm", "add"]
    assert list(both.text("category")) == ["annotation", "cpu_op", "cpu_op", "cpu_op"]
    assert both.text("category").values == EVENTS.column("category").values


def test_what_refers_to_rows_is_renumbered_and_null_stays_null() -> None:
    both = stacked([FIRST, SECOND], [{"events": 0}, {"events": 2}])
    assert both["parent"].tolist() == [-1, 0, -1, 2]


def test_columns_of_numbers_are_put_together() -> None:
    steps = [Table(STEPS, {"step": [number], "end_ns": [9 * number]}) for number in (1, 2)]
    assert stacked(steps)["end_ns"].tolist() == [9, 18]
