from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.testing import drawn_trace
from stepscope.trace.schema import EVENTS, MEMORY, STEPS, TRACKS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace, allocated_peaks, clock_of, with_times

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
    assert [*text._passing] == [is_even]
    text.where(lambda value: value == "7")
    text.mask("7")
    assert [*text._passing] == [is_even]  # of what is not asked again nothing is kept
    Text.of(["7"]).where(is_even)
    assert Text.of(["7"])._passing == {}


@pytest.mark.parametrize("many", [1, 50, 5000])
def test_few_rows_of_many_values_are_tested_like_all(many: int) -> None:
    """`many` rows each of a value that passes, of null, and of one that does not."""
    values = [str(number) for number in range(20_000)]
    text = Text(np.repeat(np.array([7, -1, 8], np.int32), many), values)
    asked: list[str] = []
    passing = text.where(lambda value: not asked.append(value) and value == "7")
    assert passing.tolist() == [True] * many + [False] * 2 * many
    assert sorted(asked) == (["7", "8"] if many < 5000 else sorted(values))


def test_drawn_by_hand_a_text_is_tested_mapped_recoded_and_compacted() -> None:
    text = Text(np.array([2, -1, 0, 2], np.int16), ["a", "unused", "b"])
    assert list(text) == [text[row] for row in range(4)] == ["b", None, "a", "b"]
    assert len(text) == 4
    assert text.mask("b", "unused").tolist() == [True, False, False, True]
    assert text.passing(str.isalpha).tolist() == [True, True, True, False]
    assert list(text.map(str.upper)) == ["B", None, "A", "B"]
    assert list(text.map({"a": "x"}.get)) == [None, None, "x", None]
    assert list(text.take(np.array([True, True, False, False]))) == ["b", None]
    compact = text.compact()
    assert (compact.codes.tolist(), compact.codes.dtype, compact.values) == (
        [1, -1, 0, 1],
        np.int16,
        ["a", "b"],
    )
    recoded = text.recoded(("b", "c", "a"))
    assert (recoded.codes.tolist(), recoded.codes.dtype) == ([0, -1, 2, 0], np.int8)
    assert recoded.recoded(recoded.values) is recoded
    with pytest.raises(ValueError, match=r"expected one of \['a', 'c'\], found \{"):
        text.recoded(("a", "c"))
    copy = pickle.loads(pickle.dumps(text))
    assert (list(copy), copy._passing) == (list(text), {})


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
    event = next(Table(EVENTS, {"name": ["mm"]}).rows())
    assert (event["scope"], event["category"], event["stage"], event["recompute"]) == (None, None, None, 0)
    assert len(Table(EVENTS, {})) == 0


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


def test_a_span_ends_with_its_duration_or_at_its_end() -> None:
    events = Table(EVENTS, {"start_ns": [1, 5, 7], "duration_ns": [2, 3, 0]})
    steps = Table(STEPS, {"start_ns": [1, 5], "end_ns": [5, 9]})
    assert [column.tolist() for column in events.spans()] == [[1, 5, 7], [3, 8, 7]]
    assert [column.tolist() for column in events.spans(np.array([2, 0]))] == [[7, 1], [7, 3]]
    assert [column.tolist() for column in steps.spans(np.array([1]))] == [[5], [9]]


@pytest.mark.parametrize(
    ("base", "clock"),
    [(None, 7), (5, 12), (-5, 2), ("5", 7), (5.5, 7), (2**61 - 1, 2**61 + 6), (2**61, 7), (-(2**61), 7)],
)
def test_the_clock_of_a_trace_counts_from_its_base_time(base: object, clock: int) -> None:
    properties = {} if base is None else {"baseTimeNanoseconds": base}
    assert clock_of(Metadata(origin_ns=7, properties=properties)) == clock


def test_times_are_moved_and_null_and_durations_are_not() -> None:
    steps = Table(
        STEPS, {"start_ns": [-3, 1], "end_ns": [0, 2], "device_end_ns": [-1, 0], "device_busy_ns": 2 * [9]}
    )
    moved = with_times(steps, lambda times: times * 2 + 10)
    row = {name: moved[name].tolist() for name in ("start_ns", "end_ns", "device_end_ns", "device_busy_ns")}
    assert row == {
        **{"start_ns": [4, 12], "end_ns": [10, 14], "device_end_ns": [-1, 10], "device_busy_ns": [9, 9]}
    }
    tracks = Table(TRACKS, {"name": ["a"]})
    assert with_times(tracks, lambda times: times + 1) is tracks


def test_the_peak_of_each_device_is_that_of_one_rank() -> None:
    rows = [
        ("cuda:0", 5, 0),
        ("cuda:0", 9, 0),
        ("cuda:1", 0, 0),
        ("cuda:1", 99, 1),
        ("cpu", -1, 0),
        (None, 50, 0),
    ]
    device, allocated, rank = zip(*rows, strict=True)
    memory = Table(MEMORY, {"device": Text.of(device), "allocated_bytes": allocated, "rank": rank})
    assert allocated_peaks(memory, 0) == {"cuda:0": 9, "cuda:1": 0}
    assert allocated_peaks(memory, 1) == {"cuda:1": 99}
    assert allocated_peaks(memory, 2) == {}


def test_metadata_are_the_same_after_json() -> None:
    metadata = Metadata("a", "b", ranks=(1, 2), devices=({"name": "A"},), captures={"2": {"outcome": "done"}})
    assert Metadata.from_json(metadata.to_json()) == metadata
    assert (metadata.capture_of(2), metadata.capture_of(1)) == ({"outcome": "done"}, {})
    assert (Metadata().ranks, Metadata().world_size) == ((0,), 1)
    assert Metadata() == Metadata("", "", "", "", (), (0,), 1, 0, 0, {}, {}, {}, {}, {})


def test_a_copy_of_a_trace_has_other_warnings_and_its_arguments() -> None:
    trace = drawn_trace(
        "main | 0 9 | mm | shape=[2]\nmain | 1 2 | add\nmain | 3 4 | mul | shape=[3]", ranks=(3,)
    )
    warned = trace.with_warnings([("a", "first", 1), ("b", "second", 2), ("c", "third", 3)])
    left = warned.without_warnings(["a", "c"])
    assert [tuple(row.values()) for row in left["warnings"].rows()] == [(3, "b", "second", 2)]
    assert left.arguments_of(np.array([2, 1, 0])) == [{"shape": [3]}, {}, {"shape": [2]}]
    assert left.event_arguments(0) == {"shape": [2]}
    assert [*left.tables] == [*trace.tables]
    assert trace._repr_html_() is None


def test_a_copy_of_a_trace_has_other_columns_of_events() -> None:
    trace = drawn_trace("main | 0 9 | a\nmain | 10 19 | b")
    copy = trace.with_events(step=[3, 4], start_ns=[1, 2])
    assert (copy.events["step"].tolist(), copy.events["start_ns"].tolist()) == ([3, 4], [1, 2])
    assert copy.events.text("name") is trace.events.text("name")
    assert copy["tracks"] is trace["tracks"]
    assert trace.events["start_ns"].tolist() == [0, 10_000]


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
