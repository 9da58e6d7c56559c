"""The builder of tiny traces, which the other tests rely on."""

from __future__ import annotations

import pytest

from stepscope.testing import drawn_trace

DRAWING = """
    -- a step with one product
    main     |  0 100   | ProfilerStep#0
    main     | 10  20.5 | aten::mm          | seq=1 fwd=3 Input=float
    main     | 12  14   | cudaLaunchKernel  | corr=7
    stream 7 | 30  50   | sgemm             | corr=7
    stream 7 | 50  60   | Memcpy HtoD       | bytes=64
    comm 1   | 60  70   | all_reduce        | cat=communication
    fwdbwd   | arrow    | aten::mm > sgemm
"""


def test_a_line_is_an_event() -> None:
    rows = list(drawn_trace(DRAWING).events.rows())
    found = [(row["name"], row["category"], row["start_ns"], row["duration_ns"]) for row in rows]
    assert found == [
        ("ProfilerStep#0", "annotation", 0, 100_000),
        ("aten::mm", "cpu_op", 10_000, 10_500),
        ("cudaLaunchKernel", "runtime", 12_000, 2_000),
        ("sgemm", "kernel", 30_000, 20_000),
        ("Memcpy HtoD", "memcpy", 50_000, 10_000),
        ("all_reduce", "communication", 60_000, 10_000),
    ]


def test_events_nest_on_their_tracks() -> None:
    trace = drawn_trace(DRAWING)
    assert [row["parent"] for row in trace.events.rows()] == [None, 0, 1, None, None, None]
    assert trace.events["self_ns"].tolist() == [89_500, 8_500, 2_000, 20_000, 10_000, 10_000]


def test_options_are_columns_or_arguments() -> None:
    trace = drawn_trace(DRAWING)
    rows = list(trace.events.rows())
    assert (rows[1]["sequence"], rows[1]["forward_thread"]) == (1, 3)
    assert [row["correlation"] for row in rows] == [None, None, 7, 7, None, None]
    assert rows[4]["bytes"] == 64
    assert trace.event_arguments(1) == {"Input": "float"}


def test_tracks_are_devices_by_their_names() -> None:
    rows = list(drawn_trace(DRAWING)["tracks"].rows())
    found = [(row["name"], row["kind"], row["device"], row["stream"]) for row in rows]
    assert found == [("main", "cpu", None, None), ("stream 7", "device", 0, 7), ("comm 1", "device", 0, 1)]


def test_arrows_tie_events_by_name() -> None:
    (row,) = drawn_trace(DRAWING)["flows"].rows()
    assert row == {"kind": "fwdbwd", "source_event": 1, "target_event": 3}


def test_metadata_is_passed_on() -> None:
    trace = drawn_trace("main | 0 1 | a", ranks=(3,), framework="pytorch")
    assert trace.metadata.framework == "pytorch"
    assert trace["tracks"]["rank"].tolist() == [3]


def test_nothing_drawn_is_an_empty_trace() -> None:
    assert len(drawn_trace("-- nothing").events) == 0


@pytest.mark.parametrize("line", ["main", "main | 0 1", "main | 5 | a", "main | 0 1 | a | b | c"])
def test_a_line_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected 'track"):
        drawn_trace(line)
