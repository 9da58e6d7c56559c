from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.testing import drawn_trace
from stepscope.trace.builder import Arrows, Parts, build, rounding
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace


def events(**columns: Any) -> dict[str, Any]:
    return {"name": ["a", "b", "c"], "category": ["cpu_op"] * 3, "track": [0, 0, 0], **columns}


def test_events_are_sorted_the_longer_first_and_begin_at_zero() -> None:
    trace = build(Parts(events(start_ns=[30, 10, 10], duration_ns=[5, 3, 40]), {"name": ["main"]}))
    rows = [(r["name"], r["start_ns"], r["parent"], r["self_ns"]) for r in trace.events.rows()]
    assert rows == [("c", 0, None, 32), ("b", 0, 0, 3), ("a", 20, 0, 5)]
    assert (trace.metadata.origin_ns, trace.metadata.tolerance_ns) == (10, 2)


@pytest.mark.parametrize("first", ["events", "instants", "counters", "memory"])
def test_the_zero_is_that_of_the_first_thing_recorded(first: str) -> None:
    begin = {"events": 30, "instants": 31, "counters": 32, "memory": 33} | {first: 20}
    parts = Parts(
        events(start_ns=[begin["events"], 40, 50], duration_ns=[5, 5, 5]),
        {"name": ["main"]},
        instants={"time_ns": [begin["instants"]], "track": [0], "name": ["mark"]},
        counters={"time_ns": [begin["counters"]], "track": [0], "name": ["n"], "value": [1.5]},
        memory={"time_ns": [begin["memory"]], "track": [0], "bytes": [8]},
    )
    trace = build(parts)
    assert trace.events["start_ns"].tolist() == [begin["events"] - 20, 20, 30]
    for name in ("instants", "counters", "memory"):
        assert trace[name]["time_ns"].tolist() == [begin[name] - 20]
    assert trace.metadata.origin_ns == 20


def test_memory_is_tied_to_the_innermost_event_around_it() -> None:
    parts = Parts(
        events(start_ns=[0, 10, 50], duration_ns=[40, 5, 5]),
        {"name": ["main"]},
        memory={"time_ns": [45, 12, 30], "track": [0, 0, 0], "bytes": [3, 1, 2]},
    )
    memory = build(parts)["memory"]
    assert memory["bytes"].tolist() == [1, 2, 3]
    assert memory["event"].tolist() == [1, 0, -1]


def test_memory_of_one_moment_stays_in_its_order() -> None:
    memory = {"time_ns": [1, 0] * 20, "track": [0] * 40, "bytes": range(40)}
    found = build(Parts({}, {"name": ["main"]}, memory=memory))["memory"]
    assert found["bytes"].tolist() == [*range(1, 40, 2), *range(0, 40, 2)]


def test_arrows_are_tied_to_events() -> None:
    trace = drawn_trace(
        """
        main     | 0 9 | mm
        stream 7 | 5 9 | gemm
        ac2g | arrow | mm > gemm
        """
    )
    assert list(trace["flows"].rows()) == [{"kind": "ac2g", "source_event": 0, "target_event": 1}]


def test_ends_of_arrows_are_matched_by_kind_and_id_and_tied_to_events() -> None:
    """Between two events an end belongs to the next; a tail without a head has a row of its own."""
    ends = [  # kind, id, whether it is a head, time and track
        ("fwdbwd", 1, False, 105, 0),  # in a
        ("fwdbwd", 1, True, 135, 0),  # before c
        ("fwdbwd", 2, False, 122, 0),  # in b
        ("ac2g", 1, True, 145, 0),  # in c, of another kind
        ("fwdbwd", 3, True, 160, 0),  # after all events
        ("fwdbwd", 4, True, 100, 1),  # before the event of another track
    ]
    kind, identity, is_head, time, track = zip(*ends, strict=True)
    columns = (np.array(column) for column in (identity, is_head, time, track))
    four = events(name=[*"abcd"], category=["cpu_op"] * 4, track=[0, 0, 0, 1], duration_ns=[10] * 4)
    parts = Parts(
        {**four, "start_ns": [100, 120, 140, 150]},
        {"name": ["main", "other"]},
        arrows=Arrows(Text.of(kind), *columns),
    )
    rows = [tuple(row.values()) for row in build(parts)["flows"].rows()]
    assert rows == [
        ("fwdbwd", 0, 2),
        ("ac2g", None, 2),
        ("fwdbwd", None, None),
        ("fwdbwd", None, 3),
        ("fwdbwd", 1, None),
    ]


@pytest.mark.parametrize(
    ("start", "duration", "expected"),
    [
        *(([1000], [2000], 1000), ([1001], [2000], 2), ([1000], [2], 2), ([], [], 2)),
        *(([0] * 2000 + [1], [0] * 2001, 2), ([0] * 2001, [0] * 2000 + [1], 2)),
    ],
)
def test_whole_microseconds_are_rounded_ones(start: list[int], duration: list[int], expected: int) -> None:
    assert rounding(np.array(start, np.int64), np.array(duration, np.int64)) == expected


def test_nothing_makes_an_empty_trace() -> None:
    trace = build(Parts({}, {}))
    assert {name: len(table) for name, table in trace.tables.items() if len(table)} == {}
    assert trace.metadata.origin_ns == 0


def test_warnings_add_up() -> None:
    trace = Trace({}).with_warnings([("a", "first", 1)]).with_warnings([("b", "second", 2)])
    assert list(trace["warnings"].rows()) == [
        {"rank": 0, "code": "a", "message": "first", "count": 1},
        {"rank": 0, "code": "b", "message": "second", "count": 2},
    ]


def test_an_unknown_table_is_named_with_those_there_are() -> None:
    with pytest.raises(TraceError, match=r"'kernels'; choose one of events, tracks"):
        Trace({})["kernels"]
