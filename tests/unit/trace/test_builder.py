from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.testing import drawn_trace
from stepscope.trace.builder import Parts, build, rounding
from stepscope.trace.trace import Trace


def events(**columns: Any) -> dict[str, Any]:
    return {"name": ["a", "b", "c"], "category": ["cpu_op"] * 3, "track": [0, 0, 0], **columns}


def test_events_are_sorted_the_longer_first_and_begin_at_zero() -> None:
    trace = build(Parts(events(start_ns=[30, 10, 10], duration_ns=[5, 3, 40]), {"name": ["main"]}))
    rows = [(r["name"], r["start_ns"], r["parent"], r["self_ns"]) for r in trace.events.rows()]
    assert rows == [("c", 0, None, 32), ("b", 0, 0, 3), ("a", 20, 0, 5)]
    assert trace.metadata.origin_ns == 10


def test_the_zero_is_that_of_the_first_thing_recorded() -> None:
    parts = Parts(
        events(start_ns=[30, 40, 50], duration_ns=[5, 5, 5]),
        {"name": ["main"]},
        instants={"time_ns": [20], "track": [0], "name": ["mark"]},
        counters={"time_ns": [25], "track": [0], "name": ["n"], "series": ["x"], "value": [1.5]},
    )
    trace = build(parts)
    assert trace.events["start_ns"].tolist() == [10, 20, 30]
    assert trace["instants"]["time_ns"].tolist() == [0]
    assert trace["counters"]["time_ns"].tolist() == [5]


def test_memory_is_tied_to_the_innermost_event_around_it() -> None:
    parts = Parts(
        events(start_ns=[0, 10, 50], duration_ns=[40, 5, 5]),
        {"name": ["main"]},
        memory={"time_ns": [45, 12, 30], "track": [0, 0, 0], "bytes": [3, 1, 2]},
    )
    memory = build(parts)["memory"]
    assert memory["bytes"].tolist() == [1, 2, 3]
    assert memory["event"].tolist() == [1, 0, -1]


def test_arrows_are_tied_to_events() -> None:
    trace = drawn_trace(
        """
        main     | 0 9 | mm
        stream 7 | 5 9 | gemm
        ac2g | arrow | mm > gemm
        """
    )
    assert list(trace["flows"].rows()) == [{"kind": "ac2g", "source_event": 0, "target_event": 1}]


@pytest.mark.parametrize(
    ("start", "duration", "expected"),
    [([1000], [2000], 1000), ([1001], [2000], 2), ([1000], [2], 2), ([], [], 2)],
)
def test_whole_microseconds_are_rounded_ones(start: list[int], duration: list[int], expected: int) -> None:
    assert rounding(np.array(start, np.int64), np.array(duration, np.int64)) == expected


def test_nothing_makes_an_empty_trace() -> None:
    trace = build(Parts({}, {}))
    assert {name: len(table) for name, table in trace.tables.items() if len(table)} == {}


def test_warnings_add_up() -> None:
    trace = Trace({}).with_warnings([("a", "first", 1)]).with_warnings([("b", "second", 2)])
    assert list(trace["warnings"].rows()) == [
        {"rank": 0, "code": "a", "message": "first", "count": 1},
        {"rank": 0, "code": "b", "message": "second", "count": 2},
    ]


def test_an_unknown_table_is_named_with_those_there_are() -> None:
    with pytest.raises(TraceError, match=r"'kernels'; the tables are events, tracks"):
        Trace({})["kernels"]
