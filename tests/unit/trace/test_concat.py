from __future__ import annotations

import numpy as np
import pytest
from examples import assert_same, drawn_traces
from hypothesis import given
from hypothesis import strategies as st

from stepscope.testing import drawn_trace
from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.concat import concat, joined_text, of_rank, one_rank, split
from stepscope.trace.schema import COUNTERS, FLOWS, INSTANTS, LAUNCHES, MEMORY, MODULES, STEPS
from stepscope.trace.table import Table, Text
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


@pytest.mark.parametrize(
    ("ahead_ns", "begins", "origin_ns"),
    [((0, 3000), [0, 0], 0), ((3000, 0), [0, 6000], 0), ((0, 4000), [1000, 0], -1000)],
)
def test_clocks_may_be_ahead(ahead_ns: tuple[int, int], begins: list[int], origin_ns: int) -> None:
    trace = concat(job(), ahead_ns)
    assert trace["steps"]["start_ns"].tolist() == begins
    assert trace.metadata.origin_ns == origin_ns


@pytest.mark.parametrize(("begin_ns", "together"), [(10_000, True), (10_001, True), (10_002, False)])
def test_recordings_of_one_job_overlap_or_follow_at_once(begin_ns: int, together: bool) -> None:
    first, second = job()
    trace = concat([first, second.with_metadata(origin_ns=begin_ns)])
    assert trace["steps"]["start_ns"].tolist() == [0, begin_ns * together]
    warnings = [(row["code"], row["count"]) for row in trace["warnings"].rows()]
    assert warnings == ([] if together else [("clocks_apart", 2)])


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


def test_metadata_that_differ_are_kept_by_rank_or_left_out() -> None:
    first, second = (
        trace.with_metadata(
            capture={"outcome": rank},
            devices=({"name": "H200", "id": rank},),
            properties={"a": 1, "b": rank, f"c{rank}": 0},
            tolerance_ns=2 + rank,
            world_size=4 - rank,
        )
        for rank, trace in enumerate(job())
    )
    metadata = concat([first, second]).metadata
    assert metadata.captures == {"0": {"outcome": 0}, "1": {"outcome": 1}}
    assert [device["id"] for device in metadata.devices] == [0, 1]
    assert (metadata.properties, metadata.tolerance_ns, metadata.world_size) == ({"a": 1}, 3, 4)
    assert concat([*job(), *job()]).metadata.world_size == 4


@pytest.mark.parametrize("table", [INSTANTS, None])
def test_positions_in_the_files_follow_each_other(table: object) -> None:
    """Those of events, of instants and of arguments."""
    first, second = job()
    if table is INSTANTS:
        first = first.with_table(Table(INSTANTS, {"track": [0], "source": [9]}))
    else:
        blocks = (*first.arguments.blocks, ArgumentBlock.of([5, 9], [b"{}", b"{}"]))
        first = Trace(first.tables, first.metadata, Arguments(blocks))
    trace = concat([first, second])
    assert sorted(trace.events["source"].tolist()) == [0, 1, 2, 10, 11, 12]
    assert trace.event_arguments(4) == {"shape": [3]}


@pytest.mark.parametrize(("count", "dtype"), [(127, np.int8), (128, np.int32)])
def test_text_of_few_values_has_short_codes(count: int, dtype: type) -> None:
    parts = [Text.of(["0", None]), Text.of([str(number) for number in range(count)])]
    found = joined_text(parts)
    assert (list(found), found.codes.dtype) == (["0", None, *map(str, range(count))], dtype)


PROCESSES = """
    a        | 0 10 | step
    a        | 2  4 | mm    | shape=[2]
    b        | 1  9 | other | shape=[3]
    b        | 3  4 | add
    fwdbwd   | arrow | mm > add
    fwdbwd   | arrow | step > mm
"""


def of_two_processes() -> Trace:
    trace = drawn_trace(PROCESSES).with_warnings([("a_code", "message", 1)])
    texts = [text for _, text in trace.arguments.items()]
    blocks = tuple(ArgumentBlock.of([row], [text]) for row, text in enumerate(texts))
    tables = [
        Table(MEMORY, {"time_ns": [2000, 3000, 9900], "event": [2, 3, -1], "bytes": [1, 2, 3]}),
        Table(INSTANTS, {"track": [0, 1], "name": ["of a", "of b"]}),
        Table(COUNTERS, {"track": [1, 1], "name": ["of b", "of b too"]}),
    ]
    return Trace(
        {**trace.tables, **{table.schema.name: table for table in tables}}, trace.metadata, Arguments(blocks)
    )


def test_a_file_of_two_processes_is_split() -> None:
    """Names and parents of events; flows; memory; marks and counters; warnings; blocks of arguments."""
    found = []
    for part in split(of_two_processes(), np.array([0, 1])):
        found.append(
            {
                "events": list(zip(part.events.text("name"), part.events["parent"].tolist(), strict=True)),
                "tracks": (list(part["tracks"].text("name")), set(part.events["track"].tolist())),
                "flows": [tuple(row.values())[1:] for row in part["flows"].rows()],
                "memory": list(zip(part["memory"]["bytes"], part["memory"]["event"], strict=True)),
                "marks": list(part["instants"].text("name")) + list(part["counters"].text("name")),
                "their tracks": {*part["instants"]["track"].tolist(), *part["counters"]["track"].tolist()},
                "warnings": list(part["warnings"].text("code")),
                "sources": [int(block.sources[0]) for block in part.arguments.blocks],
                "shapes": [part.event_arguments(event).get("shape") for event in (0, 1)],
            }
        )
    assert found == [
        {
            "events": [("step", -1), ("mm", 0)],
            "tracks": (["a"], {0}),
            "flows": [(1, None), (0, 1)],
            "memory": [(1, 1), (3, -1)],
            "marks": ["of a"],
            "their tracks": {0},
            "warnings": ["a_code"],
            "sources": [0, 1],
            "shapes": [None, [2]],
        },
        {
            "events": [("other", -1), ("add", 0)],
            "tracks": (["b"], {0}),
            "flows": [(None, 1)],
            "memory": [(2, 1)],
            "marks": ["of b", "of b", "of b too"],
            "their tracks": {0},
            "warnings": [],
            "sources": [2, 3],
            "shapes": [[3], None],
        },
    ]


def test_a_part_without_events_has_no_arguments() -> None:
    parts = split(of_two_processes(), np.array([1, 1]))
    assert [len(part.events) for part in parts] == [0, 4]
    assert [len(part.arguments.blocks) for part in parts] == [0, 4]
    assert parts[0]["memory"]["bytes"].tolist() == [3]


def test_a_file_of_one_process_or_none_is_one_part() -> None:
    (part,) = split(drawn_trace("main | 0 9 | a"), np.zeros(1, np.int64))
    assert list(part.events.text("name")) == ["a"]
    (part,) = split(Trace({}), np.zeros(0, np.int64))
    assert len(part.events) == 0


def test_of_one_rank_are_marks_on_its_tracks_and_arrows_between_its_events() -> None:
    flows = {"kind": ["both"] * 4, "source_event": [1, 1, -1, 4], "target_event": [3, 4, 1, -1]}
    marks = [Table(INSTANTS, {"track": [0, 2, 3]}), Table(COUNTERS, {"track": [1]}), Table(FLOWS, flows)]
    whole = concat(job())
    for table in marks:
        whole = whole.with_table(table)
    found = []
    for rank in (0, 1):
        part = one_rank(whole, rank)
        arrows = [tuple(row.values())[1:] for row in part["flows"].rows()]
        tracks = part["instants"]["track"].tolist(), part["counters"]["track"].tolist()
        found.append((list(part.events.text("name")), arrows, *tracks))
    assert found == [
        (["step", "mm", "gemm"], [(1, 2), (None, 1)], [0], [1]),
        (["step", "add", "kernel"], [(1, None)], [2, 3], []),
    ]


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
