from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.schema import STEPS, TRACKS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

texts = st.lists(st.sampled_from(["a", "b", "ü", "", None]))


@given(texts)
def test_text_gives_back_what_it_was_made_of(values: list[str | None]) -> None:
    text = Text.of(values)
    assert list(text) == values
    assert [text[row] for row in range(len(text))] == values
    assert list(text.compact()) == values


@given(texts)
def test_text_tests_and_maps_like_plain_strings(values: list[str | None]) -> None:
    text = Text.of(values)
    assert text.mask("a", "").tolist() == [value in ("a", "") for value in values]
    assert text.where(str.isascii).tolist() == [bool(v is not None and v.isascii()) for v in values]
    mapped = text.map(lambda value: None if value == "b" else "x")
    assert list(mapped) == [None if value in ("b", None) else "x" for value in values]


tested: list[str] = []


def is_even(value: str) -> bool:
    tested.append(value)
    return int(value) % 2 == 0


def test_a_test_of_many_values_is_made_once() -> None:
    text = Text.of([str(number) for number in range(10_000)] + [None])
    expected = [number % 2 == 0 for number in range(10_000)] + [False]
    assert text.where(is_even).tolist() == expected
    assert text.take(np.arange(10_001)).where(is_even).tolist() == expected
    assert len(tested) == 10_000


def test_text_drops_values_that_no_row_has() -> None:
    text = Text.of(["a", "b", None, "c"]).take([3, 2])
    assert text.compact().values == ["c"]
    assert list(text.compact()) == ["c", None]


def test_one_value_in_every_row() -> None:
    assert list(Text.constant("x", 2)) == ["x", "x"]


def test_columns_left_out_are_null_or_zero_or_empty() -> None:
    row = next(Table(STEPS, {"step": [3]}).rows())
    assert row["device_end_ns"] is None
    assert (row["start_ns"], row["evidence"]) == (0, "")


def test_id_is_the_row_number() -> None:
    assert Table(TRACKS, {"name": ["a", "b"]})["id"].tolist() == [0, 1]


def test_a_table_cannot_be_changed() -> None:
    steps = Table(STEPS, {"step": np.array([3])})
    with pytest.raises(ValueError, match="read-only"):
        steps["step"][0] = 4
    assert steps.with_columns(step=[4])["step"].tolist() == [4]
    assert steps["step"].tolist() == [3]


def test_rows_are_taken_by_index_and_by_mask() -> None:
    tracks = Table(TRACKS, {"name": ["a", "b", "c"], "device": [-1, 0, 1]})
    assert list(tracks.take([2, 0]).text("name")) == ["c", "a"]
    assert tracks.take(tracks["device"] >= 0)["device"].tolist() == [0, 1]


def test_unknown_columns_and_uneven_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="no column"):
        Table(STEPS, {"stop": [1]})
    with pytest.raises(ValueError, match="differ in length"):
        Table(STEPS, {"step": [1], "rank": [0, 0]})


def test_numbers_are_not_text() -> None:
    with pytest.raises(TypeError, match="numbers"):
        Table(STEPS, {"step": [1]}).text("step")


def test_a_prompt_shows_what_is_in_a_table_and_in_a_trace() -> None:
    steps = Table(STEPS, {"step": [0, 1], "start_ns": [0, 5], "end_ns": [5, 9]})
    assert repr(steps).startswith("<Table steps: 2 rows of step, rank, start_ns")
    trace = Trace({"steps": steps}, Metadata(source="train.stepscope"))
    assert repr(trace) == "<Trace train.stepscope: steps 2>"
    assert repr(Trace({})) == "<Trace (drawn): empty>"
