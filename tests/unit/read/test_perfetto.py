"""Perfetto's protobuf traces say the same as the trace-event JSON of the same events."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from reading import event, read_text
from test_any_bytes import assert_no_traceback
from xspaces import message, varint

from stepscope.errors import IngestError
from stepscope.read.perfetto.perfetto import is_perfetto, read_perfetto
from stepscope.trace.trace import Trace

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
THREAD, PROCESS, CUSTOM = 1, 2, 3  # uuids


def packet(*parts: tuple[int, Any], sequence: int = 1) -> bytes:
    return message((1, message(*parts, (10, sequence))))


def track(uuid: int, *parts: tuple[int, Any]) -> bytes:
    return packet((60, message((1, uuid), *parts)))


def at(ns: int, kind: int, *parts: tuple[int, Any], track: int = THREAD, sequence: int = 1) -> bytes:
    return packet((8, ns), (11, message((9, kind), (11, track), *parts)), sequence=sequence)


def interned(kind: int, **numbers: int) -> tuple[int, bytes]:
    return 12, message(*((kind, message((1, number), (2, text))) for text, number in numbers.items()))


TRACKS = (
    track(PROCESS, (3, message((1, 4), (6, "train.py"))))
    + track(THREAD, (5, PROCESS), (4, message((1, 4), (2, 9), (5, "main"))))
    + track(CUSTOM, (5, PROCESS), (2, "Stream 7"))
)


def read_any(data: bytes) -> Trace:
    return read_perfetto(io.BytesIO(data), False, lambda size: None)


def read(data: bytes) -> Trace:
    assert is_perfetto(data)
    return read_any(data)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Track, name, category, start and duration in ns, and the name of the event around each."""
    events, tracks = trace.events, trace["tracks"]
    names, categories = events.text("name"), events.text("category")
    return sorted(
        (
            tracks.text("name")[row["track"]],
            names[at],
            categories[at],
            int(row["start_ns"]),
            int(row["duration_ns"]),
            names[row["parent"]] if row["parent"] is not None and row["parent"] >= 0 else None,
        )
        for at, row in enumerate(events.rows())
    )


def test_slices_nest_on_their_tracks() -> None:
    trace = read(
        TRACKS
        + at(1000, BEGIN, (23, "step"), (22, "user_annotation"))
        + at(1200, BEGIN, (23, "aten::mm"), (22, "cpu_op"), (4, message((10, "Sequence number"), (4, 5))))
        + at(1300, BEGIN, (23, "gemm"), (22, "kernel"), track=CUSTOM)
        + at(1500, END)
        + at(1600, END, track=CUSTOM)
        + at(2001, END, (4, message((10, "late"), (6, "yes"))))
    )
    assert [row[1:] for row in rows(trace)] == [
        ("gemm", "kernel", 300, 300, None),
        ("aten::mm", "cpu_op", 200, 300, "step"),
        ("step", "annotation", 0, 1001, None),
    ]
    assert trace.events["sequence"].max() == 5
    assert not len(trace["warnings"])


def test_interned_texts_hold_until_the_sequence_clears_them() -> None:
    trace = read(
        TRACKS
        + packet((13, 1), interned(2, first=1))
        + at(0, BEGIN, (10, 1))
        + at(10, END)
        + packet((13, 1), interned(2, other=1), sequence=2)
        + packet((13, 1), interned(2, second=1))
        + at(20, BEGIN, (10, 1))
        + at(30, END)
        + at(40, BEGIN, (10, 1), sequence=2)
        + at(50, END, sequence=2)
    )
    assert [(row[3], row[1]) for row in sorted(rows(trace), key=lambda row: row[3])] == [
        (0, "first"),
        (20, "second"),
        (40, "other"),
    ]


def test_times_of_an_incremental_clock_add_up() -> None:
    """As the SDK writes them: a clock of the sequence, in units of a microsecond, from a boot time."""
    clocks = message(
        (1, message((1, 6), (2, 5_000_000))), (1, message((1, 64), (2, 5_000), (3, 1), (4, 1000)))
    )
    defaults = message((58, 64), (11, message((11, THREAD))))
    begin, end = message((9, BEGIN), (23, "a")), message((9, END))
    trace = read(
        TRACKS
        + packet((13, 1), (6, clocks), (59, defaults))
        + packet((8, 3), (11, begin))
        + packet((8, 4), (11, end))
        + packet((8, 2), (60, message((1, 8), (2, "described before its first use"))))
        + packet((8, 2), (11, begin))
        + packet((8, 1), (11, end))
    )
    assert trace.metadata.origin_ns == 5_003_000
    assert [row[3:5] for row in rows(trace)] == [(0, 4000), (8000, 1000)]


def test_flows_counters_and_instants_are_read() -> None:
    flow = varint(47 << 3 | 1) + struct.pack("<Q", 2**63 + 5)

    def begins(ns: int, name: str) -> bytes:
        return packet((8, ns), (11, message((9, BEGIN), (11, THREAD), (23, name)) + flow))

    trace = read(
        TRACKS
        + begins(0, "launch")
        + at(5, END)
        + begins(10, "kernel")
        + at(30, END)
        + at(7, INSTANT, (23, "mark"))
        + track(8, (5, PROCESS), (2, "bytes"), (8, b""))
        + at(8, COUNTER, (30, 12), track=8)
        + at(9, COUNTER, (44, 1.5), track=8)
    )
    assert [(row["name"], row["value"]) for row in trace["counters"].rows()] == [
        ("bytes", 12),
        ("bytes", 1.5),
    ]
    assert [row["name"] for row in trace["instants"].rows()] == ["mark"]
    assert len(trace["flows"]) == 1


def test_counters_have_units_and_may_count_on() -> None:
    """A counter in thousands; and one whose values are since the value before."""
    trace = read(
        TRACKS
        + track(8, (5, PROCESS), (2, "kilo"), (8, message((4, 1000))))
        + track(9, (5, PROCESS), (2, "sum"), (8, message((5, 1))))
        + b"".join(at(ns, COUNTER, (30, 2), track=uuid) for ns in (1, 2) for uuid in (8, 9))
    )
    values = [(row["name"], row["value"]) for row in trace["counters"].rows()]
    assert sorted(values) == [("kilo", 2000), ("kilo", 2000), ("sum", 2), ("sum", 4)]


def test_events_that_chrome_writes_as_in_json_are_read() -> None:
    """`X` with a duration, and an async pair by its number, in `legacy_event`."""

    def legacy(ns: int, phase: str, *parts: tuple[int, Any]) -> bytes:
        return at(ns, 0, (23, phase), (6, message((2, ord(phase)), *parts)))

    trace = read(TRACKS + legacy(1000, "X", (3, 7)) + legacy(2000, "b", (10, 5)) + legacy(9000, "e", (10, 5)))
    assert [row[3:5] for row in rows(trace)] == [(0, 7000), (1000, 7000)]


def test_names_are_text_whatever_their_bytes() -> None:
    trace = read(TRACKS + at(0, BEGIN, (23, b'a"\\\n\xff\xc3\xa9\xed\xa0\x80')) + at(5, END))
    assert rows(trace)[0][1] == 'a"\\\n\ufffd\u00e9' + 3 * "\ufffd"


def test_a_name_that_would_be_written_too_often_is_refused() -> None:
    name = packet((13, 1), interned(2, **{"x" * (1 << 20): 1}))
    with pytest.raises(IngestError, match="as those of no recording do"):
        read(TRACKS + name + b"".join(at(ns, BEGIN, (10, 1)) for ns in range(300)))


def test_what_compressed_packets_write_is_bounded_by_the_file() -> None:
    filler = packet((99, random.Random(0).randbytes(10_000)))  # so that they expand less than others
    events = packet((13, 1), interned(2, **{"x" * 2_000: 1})) + at(0, BEGIN, (10, 1)) * 80_000
    with pytest.raises(IngestError, match="more than 128 MiB as text"):
        read(TRACKS + packet((50, zlib.compress(filler + events))))


def test_what_does_not_balance_is_read_as_in_json() -> None:
    trace = read(TRACKS + at(0, END) + at(10, BEGIN, (23, "open")) + at(20, BEGIN, (23, "a")) + at(30, END))
    assert [row[1:5] for row in rows(trace)] == [("a", "other", 10, 10), ("open", "other", 0, 20)]
    codes = {row["code"] for row in trace["warnings"].rows()}
    assert {"begin_without_end", "end_without_begin"} <= codes


def test_packets_may_be_compressed_and_arguments_nest() -> None:
    entry = message((10, "shape"), (12, message((4, 2))), (12, message((4, 3))))
    annotation = message((10, "input"), (11, entry), (11, message((10, "ok"), (2, 1))))
    events = at(0, BEGIN, (23, "a"), (4, annotation)) + at(9, END)
    for data in (
        TRACKS + packet((50, zlib.compress(events))),
        message((1, message((50, zlib.compress(TRACKS + events))))),
    ):
        assert read(data).event_arguments(0) == {"input": {"shape": [2, 3], "ok": True}}


@pytest.mark.parametrize("seed", range(10))
def test_generated_traces_equal_their_json(seed: int) -> None:
    """Stacks of slices on several threads, in any order of packets of different threads."""
    chance = random.Random(seed)
    events: list[dict[str, Any]] = []
    marks: list[tuple[int, bytes]] = []

    def nest(thread: int, start: int, end: int, level: int) -> None:
        while end - start > 4 and level < 6:
            first = chance.randrange(start, end - 2)
            last = chance.randrange(first + 1, end)
            name = chance.choice(["aten::mm", "aten::add", "forward"])
            events.append(event(name, first, last - first, cat="cpu_op", pid=4, tid=thread))
            marks.append((first * 1000, at(first * 1000, BEGIN, (23, name), (22, "cpu_op"), track=thread)))
            nest(thread, first, last, level + 1)
            marks.append((last * 1000, at(last * 1000, END, track=thread)))
            start = last + 1

    threads = range(10, 13)
    for thread in threads:
        nest(thread, 0, chance.randrange(5, 400), 0)
        marks.append((0, track(thread, (4, message((1, 4), (2, thread), (5, f"t{thread}"))))))
    labels = [
        {"ph": "M", "name": "thread_name", "pid": 4, "tid": thread, "args": {"name": f"t{thread}"}}
        for thread in threads
    ]
    marks.sort(key=lambda mark: mark[0])
    assert rows(read(b"".join(data for _, data in marks))) == rows(read_text(json.dumps(labels + events)))


def test_a_trace_of_the_official_package_equals_its_json() -> None:
    """Written by `perfetto` 0.59.1 with interned names, which is too large for these tests."""
    folder = Path(__file__).parent / "perfetto_package"
    trace = read((folder / "nested.pftrace").read_bytes())
    assert rows(trace) == rows(read_text((folder / "nested.json").read_text("utf-8")))
    assert (len(trace.events), len(trace["warnings"])) == (14, 0)


DEEP = b""
for _ in range(1000):
    DEEP = message((11, DEEP))
HOSTILE = {
    "parents in a circle": track(1, (5, 2)) + track(2, (5, 1)) + at(0, BEGIN, (23, "a")) + at(5, END),
    "deep arguments": TRACKS + at(0, BEGIN, (23, "a"), (4, DEEP)) + at(5, END),
    "a compressed bomb": TRACKS + at(0, BEGIN) + packet((50, zlib.compress(bytes(1 << 26)))),
    "wrong types": packet((8, 5), (11, 7), (60, 3), (12, 1), (6, 2), (59, 1))
    + packet((8, b"x"), (11, message((4, 3), (23, 5), (9, b"1"), (10, "a"), (44, 2)))),
    "no events": TRACKS,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_traces_are_read_or_refused(name: str) -> None:
    assert_no_traceback(read_any, HOSTILE[name])


def test_damaged_traces_are_read_or_refused() -> None:
    chance = random.Random(0)
    whole = (
        TRACKS
        + packet((13, 1), interned(2, b=1))
        + at(0, BEGIN, (4, message((10, "k"), (6, "v"))))
        + at(5, END)
    )
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert_no_traceback(read_any, bytes(data[: chance.randrange(len(data) // 2, len(data))]))


def test_millions_of_packets_of_nothing_hold_no_event() -> None:
    nothing = b"\n\0" * 2_000_000
    packed = message((1, message((50, zlib.compress(nothing * 6)))))
    for packets in (nothing, packed):
        with pytest.raises(IngestError, match="no readable trace event"):
            read(TRACKS + packets)
