"""Whatever stands in a file: read exactly where it is well formed, refused or told of where not."""

from __future__ import annotations

import gzip
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from reading import read_gzip, read_text, warnings

from stepscope.errors import IngestError

NASTY = st.sampled_from(
    ["},{", "}]", '"traceEvents":[', "\\", '\\"', "\n", "\0", "é", "😀", "\u2028", "[", ""]
)
TEXT = st.lists(st.one_of(NASTY, st.text(st.characters(exclude_categories=["Cs"])))).map("".join)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
EVENTS = st.builds(
    lambda name, ts, dur, tid, args: {
        "ph": "X",
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 1,
        "tid": tid,
        "args": args,
    },
    TEXT,
    st.integers(-(10**9), 10**9),
    st.integers(0, 10**6),
    st.one_of(st.integers(-(2**70), 2**70), TEXT),
    st.dictionaries(TEXT, VALUES, max_size=3),
)
STYLES = st.sampled_from(
    [
        {"indent": None, "separators": (",", ":")},
        {"indent": None, "separators": (", ", ": ")},
        {"indent": 1, "separators": (",", " : ")},
        {"indent": "\t", "separators": (" ,", ":")},
    ]
)


@given(
    # Equal events are copies, of which one counts (test_repeated_events.py).
    events=st.lists(EVENTS, min_size=1, max_size=8, unique_by=json.dumps),
    style=STYLES,
    ascii_only=st.booleans(),
    top=st.one_of(st.none(), st.dictionaries(TEXT, VALUES, max_size=3)),
)
def test_events_come_back_as_written(
    events: list[dict[str, Any]], style: dict[str, Any], ascii_only: bool, top: dict[str, Any] | None
) -> None:
    data = events if top is None else {**top, "traceEvents": events, "end": [top]}
    trace = read_text(json.dumps(data, ensure_ascii=ascii_only, **style))
    rows = sorted(trace.events.rows(), key=lambda row: int(row["source"]))
    threads = list(trace["tracks"].text("thread"))
    for row, event in zip(rows, events, strict=True):
        assert row["name"] == event["name"]
        assert row["start_ns"] + trace.metadata.origin_ns == event["ts"] * 1000
        assert row["duration_ns"] == event["dur"] * 1000
        assert threads[row["track"]] == str(event["tid"])
        assert trace.event_arguments(row["id"]) == event["args"]
    assert warnings(trace) == {}


SAMPLE = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "gpu"}],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "mm é",
                "pid": 1,
                "tid": 1,
                "ts": 1.5,
                "dur": 9,
                "args": {"correlation": 7, "Input Dims": [[2, 3], []]},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "sgemm",
                "pid": 0,
                "tid": 7,
                "ts": 5,
                "dur": 4,
                "args": {"correlation": 7, "stream": 7},
            },
            {"ph": "s", "id": 7, "cat": "ac2g", "pid": 1, "tid": 1, "ts": 2},
            {"ph": "f", "id": 7, "cat": "ac2g", "pid": 0, "tid": 7, "ts": 5, "bp": "e"},
            {"ph": "B", "name": "b", "pid": 1, "tid": 1, "ts": 20},
            {"ph": "E", "name": "b", "pid": 1, "tid": 1, "ts": 30},
            {"ph": "b", "cat": "c", "id": "0x1", "name": "a", "pid": 1, "tid": 1, "ts": 20},
            {"ph": "e", "cat": "c", "id": "0x1", "name": "a", "pid": 1, "tid": 1, "ts": 30},
            {"ph": "C", "name": "memory", "pid": 1, "ts": 40, "args": {"used": 5}},
            {
                "ph": "i",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": 41,
                "args": {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": 512},
            },
            {"ph": "i", "s": "t", "name": "end", "pid": 1, "tid": 1, "ts": 50},
        ],
        "distributedInfo": {"rank": 1, "world_size": 2},
    },
    ensure_ascii=False,
).encode()
EDITS = st.lists(
    st.tuples(
        st.integers(0, len(SAMPLE)),
        st.integers(0, 12),
        st.one_of(st.binary(max_size=4), st.sampled_from([b"{", b"}", b"]", b'"', b",", b"\\", b"-"])),
    ),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, gone, new in edits:
        data = data[:place] + new + data[place + gone :]
    return data


def assert_no_traceback(read: Any, data: bytes) -> None:
    """Reading gives a trace whose parts can all be looked at, or one clear line."""
    try:
        trace = read(data)
    except IngestError:
        return
    assert len(trace.events) + sum(len(table) for table in trace.tables.values()) > 0
    for row in trace.events["id"].tolist():
        trace.event_arguments(row)
    for table in trace.tables.values():
        repr(list(table.rows())).encode()


@given(edits=EDITS)
def test_a_spoilt_file_never_gives_a_traceback(edits: list[tuple[int, int, bytes]]) -> None:
    assert_no_traceback(read_text, edited(SAMPLE, edits))


@given(cut=st.integers(0, len(SAMPLE)))
def test_nor_does_a_file_that_is_cut(cut: int) -> None:
    assert_no_traceback(read_text, SAMPLE[:cut])


@given(edits=EDITS)
def test_nor_does_a_spoilt_gzip_file(edits: list[tuple[int, int, bytes]]) -> None:
    data = gzip.compress(SAMPLE, mtime=0)
    places = [(place * len(data) // len(SAMPLE), gone, new) for place, gone, new in edits]
    assert_no_traceback(read_gzip, edited(data, places))


@given(data=st.binary(max_size=200))
def test_nor_do_any_bytes(data: bytes) -> None:
    assert_no_traceback(read_text, data)
    assert_no_traceback(read_text, b"[" + data)
    assert_no_traceback(read_text, b'{"traceEvents": [' + data)
