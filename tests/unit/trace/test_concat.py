from __future__ import annotations

import numpy as np
from examples import assert_same, drawn_traces
from hypothesis import given
from hypothesis import strategies as st

from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank
from stepscope.trace.schema import LAUNCHES, MEMORY, MODULES, STEPS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

RANK0 = """
    main     | 0 10 | step | seq=1
    main     | 2  4 | mm   | seq=2 shape=[2]
    stream 7 | 5  9 | gemm
"""
RANK1 = """
    main     | 0 12 | step
    main     | 6  7 | add  | shape=[3]
    stream 7 | 8 20 | kernel
    fwdbwd   | arrow | add > kernel
"""


def job(*, apart_us: int = 0) -> list[Trace]:
    """Two ranks; the second began 3 us (and `apart_us`) after the first."""
    first = of_rank(drawn_trace(RANK0, devices=({"name": "H200"},)), 0)
    second = of_rank(drawn_trace(RANK1, devices=({"name": "H200"},)), 1)
    launch = Table(LAUNCHES, {"cpu_event": [1], "device_event": [2], "delay_ns": [2000]})
    steps = Table(STEPS, {"step": [5], "rank": [1], "start_ns": [0], "end_ns": [12000]})
    steps = steps.with_columns(device_end_ns=[-1])
    modules = Table(MODULES, {"path": ["", "fc"], "parent": [-1, 0], "rank": [1, 1]})
    memory = Table(MEMORY, {"time_ns": [1000], "event": [0]})
    for table in (launch, steps, modules, memory):
        first, second = first.with_table(table), second.with_table(table)
    return [first, second.with_metadata(origin_ns=(3 + apart_us) * 1000)]


def test_events_are_merged_in_order_of_start() -> None:
    trace = concat(job())
    rows = [(row["name"], row["start_ns"], row["parent"], row["track"]) for row in trace.events.rows()]
    assert rows == [
        ("step", 0, None, 0),
        ("mm", 2000, 0, 0),
        ("step", 3000, None, 2),
        ("gemm", 5000, None, 1),
        ("add", 9000, 2, 2),
        ("kernel", 11000, None, 3),
    ]


def test_references_follow_their_rows() -> None:
    trace = concat(job())
    assert trace["tracks"]["rank"].tolist() == [0, 0, 1, 1]
    assert trace["launches"]["cpu_event"].tolist() == [1, 4]
    assert trace["launches"]["device_event"].tolist() == [3, 5]
    assert trace["flows"]["source_event"].tolist() == [4]
    assert trace["modules"]["parent"].tolist() == [-1, 0, -1, 2]
    assert trace["memory"]["event"].tolist() == [0, 2]


def test_moments_are_put_on_the_common_clock() -> None:
    trace = concat(job())
    assert trace["memory"]["time_ns"].tolist() == [1000, 4000]
    assert trace["steps"]["end_ns"].tolist() == [12000, 15000]
    assert trace["steps"]["device_end_ns"].tolist() == [-1, -1]
    assert trace["launches"]["delay_ns"].tolist() == [2000, 2000]
    assert not len(trace["warnings"])


def test_clocks_far_apart_are_told() -> None:
    trace = concat(job(apart_us=1000))
    assert trace["steps"]["start_ns"].tolist() == [0, 0]
    assert list(trace["warnings"].text("code")) == ["clocks_apart"]


def test_a_base_time_counts() -> None:
    first, second = job()
    based = second.with_metadata(origin_ns=1000, properties={"baseTimeNanoseconds": 2000})
    assert concat([first, based])["steps"]["start_ns"].tolist() == [0, 3000]


def test_arguments_follow_their_events() -> None:
    trace = concat(job())
    assert [trace.event_arguments(event) for event in range(6)] == [
        {},
        {"shape": [2]},
        {},
        {},
        {"shape": [3]},
        {},
    ]


def test_metadata_are_merged() -> None:
    metadata = concat(job()).metadata
    assert metadata.ranks == (0, 1)
    assert metadata.world_size == 2
    assert metadata.devices == ({"name": "H200"},)
    assert metadata.origin_ns == 0


def test_one_trace_is_itself() -> None:
    trace = drawn_trace(RANK0)
    assert_same(concat([trace]), trace)


@given(st.lists(drawn_traces(), min_size=2, max_size=3), st.integers(0, 30))
def test_every_rank_is_found_again(parts: list[Trace], late_us: int) -> None:
    ranked = [of_rank(part, rank) for rank, part in enumerate(parts)]
    ranked[-1] = ranked[-1].with_metadata(origin_ns=late_us * 1000)
    whole = concat(ranked)
    assert (np.diff(whole.events["start_ns"]) >= 0).all()
    track_rank = whole["tracks"]["rank"]
    for rank, part in enumerate(ranked):
        rows = np.flatnonzero(track_rank[whole.events["track"]] == rank)
        assert _seen(whole, rows) == _seen(part, np.arange(len(part.events)))


def _seen(trace: Trace, rows: np.ndarray) -> list[tuple[object, ...]]:
    """What can be said of events without their numbers."""
    events, names = trace.events, trace.events.text("name")
    return [
        (
            names[row],
            int(events["duration_ns"][row]),
            int(events["self_ns"][row]),
            trace["tracks"].text("name")[int(events["track"][row])],
            names[int(events["parent"][row])] if events["parent"][row] >= 0 else None,
            trace.event_arguments(int(row)),
        )
        for row in rows.tolist()
    ]
