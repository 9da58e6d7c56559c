"""Events that a file holds more than once: one of each counts, and a warning says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from reading import event, read_text, warnings

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.trace.trace import Trace

Events = list[dict[str, Any]]


def training(seed: int, begin_end: bool = False) -> Events:
    """Steps of training: ranges, operators, launches with arrows, kernels, memory, a counter."""
    chance, found, at = random.Random(seed), [], 1000
    for step in range(chance.randint(2, 4)):
        start, number = at, 0
        for stage, name in (("forward", "aten::mm"), ("backward", "MmBackward0")):
            begin = at + 1
            for _ in range(chance.randint(3, 9)):
                number += 1
                identity, length = 1000 * step + number, chance.randint(5, 40)
                found += work(at + 2, length, name, identity)
                at += length + chance.randint(3, 9)
            found.append(event(f"## {stage} ##", begin, at - begin, cat="user_annotation"))
            at += 3
        found.append(event(f"ProfilerStep#{step}", start, at - start, cat="user_annotation"))
        found.append({"ph": "C", "name": "load", "pid": 1, "tid": 1, "ts": at, "args": {"x": step}})
    return apart(found) if begin_end else sorted(found, key=lambda one: one["ts"])


def work(at: int, length: int, name: str, identity: int) -> Events:
    """An operator, its launch with an arrow, its kernel, and an allocation."""
    args = {"correlation": identity}
    ends = {"id": identity, "cat": "ac2g", "name": "ac2g", "pid": 1}
    return [
        event(name, at, length, cat="cpu_op", args={"External id": identity}),
        event("cudaLaunchKernel", at + 1, 2, cat="cuda_runtime", args=args),
        event("gemm", at + 4, length, cat="kernel", pid=0, tid=7, args={**args, "stream": 7}),
        {"ph": "s", **ends, "tid": 1, "ts": at + 1},
        {"ph": "f", **ends, "pid": 0, "tid": 7, "ts": at + 4, "bp": "e"},
        {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": at + 1,
            "s": "t",
            "args": {
                "Addr": identity,
                "Bytes": 64,
                "Total Allocated": 64 * identity,
                "Device Type": 1,
                "Device Id": 0,
            },
        },
    ]


def apart(events: Events) -> Events:
    """The same with the begin and the end of each slice in events of their own."""
    found = []
    for one in events:
        if one["ph"] != "X":
            found.append((one["ts"], 0, one))
            continue
        whole = {key: value for key, value in one.items() if key not in ("ph", "dur")}
        end, length = one["ts"] + one["dur"], one["dur"]
        found.append((one["ts"], -length, {**whole, "ph": "B"}))
        found.append((end, length - 10**9, {**whole, "ph": "E", "ts": end}))
    return [one for _, _, one in sorted(found, key=lambda row: row[:2])]


def shuffled(events: Events) -> Events:
    return random.Random(5).sample(events * 2, 2 * len(events))


COPIES: dict[str, Callable[[Events], Events]] = {
    "a trace twice": lambda events: events * 2,
    "a trace three times": lambda events: events * 3,
    "each event two times": lambda events: [one for one in events for _ in range(2)],
    "in another order": shuffled,
    "half of the trace again": lambda events: events + events[: len(events) // 2],
}


def read(events: Events) -> Trace:
    return read_text(json.dumps({"traceEvents": events}))


def distinct(events: Events) -> Events:
    """The first of each, in the same order."""
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, events))]


def content(trace: Trace) -> dict[str, list[Any]]:
    """Every table but warnings as rows in any order, with arguments for positions in the file."""
    found: dict[str, list[Any]] = {}
    for name, table in trace.tables.items():
        rows = [
            {key: value for key, value in row.items() if key not in ("source", "id", "parent")}
            for row in table.rows()
        ]
        found[name] = sorted(json.dumps(row, sort_keys=True) for row in rows)
    found["arguments"] = sorted(
        json.dumps(trace.event_arguments(row), sort_keys=True) for row in range(len(trace.events))
    )
    del found["warnings"]
    return found


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("seed", range(20))
def test_a_family_of_files_with_copies(seed: int, copies: str) -> None:
    written = COPIES[copies](training(seed))
    once, again = read(distinct(written)), read(written)
    assert content(again) == content(once)
    assert warnings(again) == {"repeated_events": len(written) - len(training(seed))}
    assert warnings(once) == {}
    expected, found = summarize(annotate(once)), summarize(annotate(again))
    assert found.stages == expected.stages
    assert sum(stage.share for stage in found.stages) <= 1.000001
    assert found.devices == expected.devices


@pytest.mark.parametrize("seed", range(10))
def test_begins_and_ends_that_are_written_twice(seed: int) -> None:
    events = training(seed, begin_end=True)
    once, again = read(events), read([one for one in events for _ in range(2)])
    assert content(again) == content(once)
    assert warnings(again) == {"repeated_events": len(events)}


@pytest.mark.parametrize("seed", range(10))
def test_kernels_alone_that_are_written_twice(seed: int) -> None:
    """By a recorder that has them from two sources, in a file mostly of other events."""
    events = training(seed) + [event("frame", at, 3, cat="python") for at in range(0, 900, 5)]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    once, again = read(events), read([*events, *kernels])
    assert content(again) == content(once)
    assert warnings(again) == {"repeated_events": len(kernels)}


def test_a_few_equal_events_are_all_kept() -> None:
    events = training(3)
    equal = [event("aten::empty", 2000 + at, 0, cat="cpu_op") for at in range(4)] * 2
    some = [one for one in events if one["ph"] == "X"][:3]
    trace = read([*events, *equal, *some])
    assert len(trace.events) == sum(one["ph"] == "X" for one in events) + len(equal) + len(some)
    assert "one of each counts" not in str([*trace["warnings"].rows()])


def test_equal_events_of_one_copy_stay_in_a_file_with_two() -> None:
    events = training(3)
    events += [event("aten::empty", 2000, 1, cat="cpu_op")] * 2
    once, again = read(events), read(events * 2)
    assert content(again) == content(once)
    assert list(again.events.text("name")).count("aten::empty") == 2


def test_nested_calls_of_one_name_at_one_time_are_no_copies() -> None:
    events = training(3, begin_end=True)
    for at in range(5000, 5100, 10):
        calls = {"name": "visit", "pid": 1, "tid": 3, "cat": "python"}
        events += [{"ph": "B", "ts": at, **calls}] * 2 + [{"ph": "E", "ts": at + 4, **calls}] * 2
    trace = read(events)
    assert list(trace.events.text("name")).count("visit") == 20


def test_events_that_differ_in_arguments_alone_are_no_copies() -> None:
    events = [
        event("mm", 10 * at, 5, args={"External id": number}) for at in range(50) for number in range(2)
    ]
    trace = read(events)
    assert len(trace.events) == 100
    assert warnings(trace) == {}


def test_a_part_of_a_file_twice_is_said_but_kept() -> None:
    events = [event(f"mm{at}", 10 * at, 5) for at in range(100)]
    trace = read(events + events[:10])
    assert len(trace.events) == 110
    assert warnings(trace) == {"repeated_events": 10}


def test_calls_that_begin_and_end_at_once_are_not_said_to_be_copies() -> None:
    """Samples of a function that calls itself, as py-spy writes them."""
    found = []
    for begin in range(0, 400, 20):
        for ts, phase, names in ((begin, "B", "fffgh"), (begin + 15, "E", "hgfff")):
            found += [{"ph": phase, "name": name, "pid": 1, "tid": 1, "ts": ts} for name in names]
    trace = read_text(json.dumps(found))
    assert len(trace.events) == 100
    assert warnings(trace) == {}
