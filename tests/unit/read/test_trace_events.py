"""What each phase and field of a trace event becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reading import event, names, read_text, warnings

from stepscope.read.shared import LONGEST_NS
from stepscope.trace.trace import Trace


def read_events(*events: Any) -> Trace:
    return read_text(json.dumps(events))


def mark(phase: str, ts: float, **fields: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": 1, "tid": 1, "ts": ts, **fields}


def slices(trace: Trace) -> list[tuple[str | None, int, int]]:
    start, duration = trace.events["start_ns"], trace.events["duration_ns"]
    return list(zip(names(trace), start.tolist(), (start + duration).tolist(), strict=True))


def test_calls_of_compiled_functions_are_of_jax() -> None:
    assert read_events(event("PjitFunction(train_step)", 0, 9)).metadata.framework == "jax"
    assert read_events(event("train_step", 0, 9)).metadata.framework == ""


# -- times


@pytest.mark.parametrize(
    ("dur", "ns", "warning"),
    [
        (1.5, 1500, {}),
        ("1.5", 1500, {}),
        (0, 0, {}),
        (None, 0, {"no_duration": 1}),
        ("long", 0, {"no_duration": 1}),
        ([1], 0, {"no_duration": 1}),
        (float("nan"), 0, {"no_duration": 1}),
        (-1, 0, {"negative_duration": 1}),
        (float("-inf"), 0, {"negative_duration": 1}),
        (1e18, 0, {"long_duration": 1}),
        (float("inf"), 0, {"long_duration": 1}),
        (10**400, 0, {"no_duration": 1}),
    ],
)
def test_a_duration_is_kept_or_told_of(dur: Any, ns: int, warning: dict[str, int]) -> None:
    trace = read_events(event(dur=dur))
    assert trace.events["duration_ns"].tolist() == [ns]
    assert warnings(trace) == warning


def test_the_duration_on_the_threads_clock_stands_in() -> None:
    trace = read_events(mark("X", 1, tdur=3), mark("X", 9, dur=2, tdur=1))
    assert trace.events["duration_ns"].tolist() == [3000, 2000]
    assert warnings(trace) == {"thread_duration": 1}


@pytest.mark.parametrize("ts", [None, "soon", float("nan"), float("inf"), 1e18, -1e18, 10**400, {}])
def test_an_event_without_a_time_is_counted(ts: Any) -> None:
    trace = read_events(event("good", 5), event("bad", ts))
    assert names(trace) == ["good"]
    assert warnings(trace) == {"bad_timestamp": 1}


def test_an_event_far_from_all_others_does_not_stretch_the_trace() -> None:
    epoch_us = 1.7e15
    trace = read_events(event("a", epoch_us), event("b", epoch_us + 5), event("zero", 0))
    assert slices(trace) == [("a", 0, 2000), ("b", 5000, 7000)]
    assert warnings(trace) == {"far_timestamp": 1}


def test_events_may_lie_a_hundred_days_apart() -> None:
    apart_us = LONGEST_NS / 1000
    assert warnings(read_events(event("a", 0), event("b", apart_us))) == {}


def test_times_may_be_negative() -> None:
    trace = read_events(event("a", -7.5, 2), event("b", -1, 2))
    assert slices(trace) == [("a", 0, 2000), ("b", 6500, 8500)]
    assert trace.metadata.origin_ns == -7500


# -- phases


def test_async_slices_pair_by_id_on_a_track_for_each_category() -> None:
    trace = read_events(
        mark("b", 1, cat="net", id=1, name="get"),
        mark("b", 2, cat="net", id="0x2", name="get"),
        mark("n", 3, cat="net", id=1, name="retry"),
        mark("e", 4, cat="net", id=1, name="get"),
        mark("e", 6, cat="net", id="0x2", name="get"),
        mark("S", 2, cat="old", id2={"local": "a"}, name="read"),
        mark("S", 3, cat="old", id2={"local": "b"}, name="read"),
        mark("F", 4, cat="old", id2={"local": "a"}, name="read"),
        mark("F", 7, cat="old", id2={"local": "b"}, name="read"),
    )
    assert [(start // 1000, end // 1000) for _, start, end in slices(trace)] == [
        (0, 3),
        (1, 5),
        (1, 3),
        (2, 6),
    ]
    tracks = trace["tracks"].text("thread").take(trace.events["track"])
    assert list(tracks) == ["async net", "async net", "async old", "async old"]
    assert list(trace["instants"].text("name")) == ["retry"]
    assert warnings(trace) == {}


def test_counters_give_a_row_for_each_number() -> None:
    trace = read_events(
        mark("C", 1, name="memory", args={"used": 5, "free": 2.5, "unit": "MB"}),
        mark("C", 2, name="memory", args={"used": "many"}),
        mark("C", 3, name="memory", args={"used": 10**400}),
        mark("C", 4, name="memory"),
    )
    rows = [(row["series"], row["value"]) for row in trace["counters"].rows()]
    assert rows == [("used", 5.0), ("free", 2.5)]
    assert warnings(trace) == {"counter_without_value": 3}


@pytest.mark.parametrize("phase", ["i", "I", "R", "n", "P", "N", "O", "D", "v", "V", "c", "?", ""])
def test_every_other_phase_is_an_instant(phase: str) -> None:
    trace = read_events(mark(phase, 1, name="here", cat="test"))
    (row,) = trace["instants"].rows()
    assert (row["name"], row["category"], row["phase"]) == ("here", "test", phase)


def test_allocations_become_memory() -> None:
    allocation = {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": -512}
    trace = read_events(
        event("aten::free", 0, 9),
        mark("i", 5, name="[memory]", args={**allocation, "Total Allocated": 1024}),
        mark("i", 6, name="[memory]", args={**allocation, "Bytes": 0}),
        mark("i", 7, name="other", args=allocation),
    )
    (row,) = trace["memory"].rows()
    assert (row["device"], row["address"], row["bytes"]) == ("cuda:0", 64, -512)
    assert (row["allocated_bytes"], row["event"]) == (1024, 0)
    assert len(trace["instants"]) == 2


@pytest.mark.parametrize(
    ("kernels", "memory", "devices"),
    [
        ([2], [-1, 0], ["hip", "hip:2"]),  # the only one that the process may use is the machine's third
        ([2], [0, 1], ["hip:0", "hip:1"]),
        ([2, 3], [0], ["hip:0"]),
        ([], [0], ["hip:0"]),
    ],
)
def test_memory_of_the_only_device_is_that_of_its_kernels(
    kernels: list[int], memory: list[int], devices: list[str]
) -> None:
    args = {"Device Type": 6, "Addr": 64, "Bytes": 512}
    trace = read_events(
        *(event("kernel", 10, 5, pid=device, tid=7, cat="kernel") for device in kernels),
        *(mark("i", 5, name="[memory]", args={**args, "Device Id": device}) for device in memory),
    )
    assert sorted(row["device"] for row in trace["memory"].rows()) == devices


def test_an_unsigned_address_keeps_its_bits() -> None:
    args = {"Device Type": 0, "Addr": 2**64 - 4096, "Bytes": 8}
    trace = read_events(mark("i", 1, name="[memory]", args=args))
    assert trace["memory"]["address"].tolist() == [-4096]


def test_allocations_of_2021_have_no_address() -> None:
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512}
    trace = read_events(
        mark("i", 1, name="[memory]", args=args), mark("i", 2, name="[memory]", args={**args, "Bytes": -512})
    )
    memory = trace["memory"]
    assert memory["bytes"].tolist() == [512, -512]
    assert [row["address"] for row in memory.rows()] == [None, None]


@pytest.mark.parametrize("identity", [7, -7, "7", "a-b", 2**70])
def test_arrows_tie_events_whatever_their_id(identity: Any) -> None:
    trace = read_events(
        event("launch", 0, 5),
        event("kernel", 10, 5, tid=7, cat="kernel"),
        mark("s", 1, id=identity, cat="ac2g"),
        {**mark("f", 10, id=identity, cat="ac2g", bp="e"), "tid": 7},
    )
    (row,) = trace["flows"].rows()
    assert (row["kind"], row["source_event"], row["target_event"]) == ("ac2g", 0, 1)


def test_arrows_of_one_id_and_different_kinds_stay_apart() -> None:
    trace = read_events(
        event("op", 0, 5),
        mark("s", 1, id=1, cat="ac2g"),
        mark("s", 2, id=1, cat="fwdbwd"),
        mark("f", 3, id=1, cat="fwdbwd"),
    )
    found = {(row["kind"], row["source_event"], row["target_event"]) for row in trace["flows"].rows()}
    assert found == {("fwdbwd", 0, 0), ("ac2g", 0, None)}


# -- names of tracks, and what the file says of itself


def test_steps_of_xla_have_the_number_among_their_arguments() -> None:
    """As the profiler of TensorFlow and JAX writes `StepTraceAnnotation` as JSON."""
    args = {"step_num": "7", "_r": "1"}
    trace = read_events(event("train", 0, 9, args=args), event("fit", 10, 5, args={"group_id": "7"}))
    assert names(trace) == ["train#step_num=7", "fit"]


def test_tracks_have_the_best_name_there_is() -> None:
    trace = read_events(
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": "main"}},
        event(tid=5),
        event(tid=6),
        event(pid=2, tid=6),
    )
    assert list(trace["tracks"].text("name")) == ["main", "python 6", "thread 6"]


@pytest.mark.parametrize("args", [None, [], {}, "x", {"name": None}, {"name": [1]}, [[[1]]]])
def test_odd_labels_are_no_trouble(args: Any) -> None:
    label = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": args}
    assert names(read_events(label, event())) == ["mm"]


@pytest.mark.parametrize("value", [None, 1, "x", [], [1], {}, {"rank": "a"}, {"rank": -1}])
@pytest.mark.parametrize("key", ["distributedInfo", "deviceProperties", "samples", "stackFrames"])
def test_odd_properties_are_no_trouble(key: str, value: Any) -> None:
    trace = read_text(json.dumps({key: value, "traceEvents": [event()]}))
    assert names(trace) == ["mm"]
    assert trace.metadata.ranks == (0,)


def test_text_in_properties_can_be_stored_and_printed() -> None:
    trace = read_text('{"title": "a\\ud800", "traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}')
    assert trace.metadata.properties["title"].encode().startswith(b"a")


def test_threads_of_several_processes_with_one_name_have_that_of_their_process() -> None:
    trace = read_events(
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "Python"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 5, "args": {"name": "main"}},
        event(pid=1, tid=5),
        event(pid=2, tid=5),
        event(pid=2, tid=6),
        event(pid=0, tid=7, cat="kernel"),
        event(pid=3, tid=7, cat="kernel"),
    )
    assert list(trace["tracks"].text("name")) == [
        "Python main",
        "process 2 main",
        "thread 6",
        "thread 7",
        "thread 7",
    ]


def test_a_stream_has_its_number_however_its_thread_is_called() -> None:
    """Kineto of 2021 wrote "stream 7" where it now writes 7."""
    trace = read_events(*(event("sgemm", tid=tid, cat="kernel") for tid in (7, "stream 20", "x")))
    assert sorted(trace["tracks"]["stream"].tolist()) == [-1, 7, 20]
