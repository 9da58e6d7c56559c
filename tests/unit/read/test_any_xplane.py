"""Whatever stands in an XLA profile: read exactly where it is well formed, told of where not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from test_any_bytes import assert_no_traceback
from xspaces import ORIGIN_NS, Operation, Slice, message, read_bytes, read_space, xspace

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
STATS = st.dictionaries(
    TEXT.map("stat {}".format),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    max_size=4,
)
EVENTS = st.lists(
    st.tuples(TEXT.map("e{}".format), st.integers(0, 10**9), st.integers(0, 10**6), STATS),
    min_size=1,
    max_size=8,
)


@given(events=EVENTS)
def test_events_come_back_as_written(events: list[tuple[str, int, int, dict[str, Any]]]) -> None:
    slices = [Slice(name, start, length, **stats) for name, start, length, stats in events]
    trace = read_space({"/host:CPU": {"python": slices}})
    rows = sorted(trace.events.rows(), key=lambda row: int(row["source"]))
    for row, (name, start, length, stats) in zip(rows, events, strict=True):
        assert row["name"] == name
        assert row["start_ns"] + trace.metadata.origin_ns == ORIGIN_NS + start * 1000
        assert row["duration_ns"] == length * 1000
        assert trace.event_arguments(row["id"]) == stats
    assert not len(trace["warnings"])


WINDOW = message((1, 3), (2, 2), (3, 1), (4, 1), (5, 1), (6, 3))
CONVOLUTION = message(
    (15, message((1, WINDOW))),
    (16, message((7, 0), (8, 1), (11, b"\x00"), (6, b"\x00"), (10, 1), (12, b"\x00"))),
)
SAMPLE = xspace(
    {
        "/host:CPU": {
            "python": [Slice("train", 0, 90, step_num=3), Slice("$a.py:1 f", 1, 80, _p=5, _pt=1)],
            "Eigen": [Slice("dot.1", 5, 9, hlo_op="dot.1", hlo_module="jit_step", program_id=1)],
        },
        "/device:GPU:0": {
            "Stream #7": [Slice("k", 20, 9, correlation_id=5, memcpy_details="size:12")],
            "XLA Modules": [Slice("jit_step", 20, 9, run_id=8)],
        },
    },
    {
        "jit_step": {
            "x": Operation("parameter", shape="f32[4,4]"),
            "dot.1": Operation(
                "fusion",
                "jit(step)/jvp(MLP)/dot_general",
                "a.py",
                3,
                "(f32[4,4], s8[64])",
                ("x", "x"),
                members={
                    "p": Operation("parameter", shape="f32[4,4]", fields=message((9, 0))),
                    "c": Operation("convolution", shape="f32[4,4]", operands=("p", "p"), fields=CONVOLUTION),
                },
            ),
            "call": Operation(
                "custom-call",
                shape="f32[4,4]",
                operands=("x", "x"),
                fields=message((28, "__cublas$gemm"), (43, '{"a": {"b": 1}}')),
            ),
        }
    },
)
EDITS = st.lists(
    st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 6), st.binary(max_size=4)), min_size=1, max_size=6
)


@given(edits=EDITS)
def test_a_spoilt_file_never_gives_a_traceback(edits: list[tuple[int, int, bytes]]) -> None:
    data = SAMPLE
    for place, gone, new in edits:
        data = data[:place] + new + data[place + gone :]
    assert_no_traceback(read_bytes, data)


@given(flips=st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), max_size=4))
def test_nor_does_one_with_other_bytes(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLE)
    for place, value in flips:
        data[place] = value
    assert_no_traceback(read_bytes, bytes(data))


@given(cut=st.integers(0, len(SAMPLE)))
def test_nor_does_a_file_that_is_cut(cut: int) -> None:
    assert_no_traceback(read_bytes, SAMPLE[:cut])


@given(data=st.binary(max_size=200))
def test_nor_do_any_bytes(data: bytes) -> None:
    assert_no_traceback(read_bytes, data)
