"""Several files of one process are cycles of its profiler, and no ranks."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate.ranks import (
    ProcessRecording,
    last_cycles,
    machine_of,
    recording_of,
    usual_of_peers,
)
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace


def recorded(process: str, begin: int, end: int, machine: str = "node-1") -> ProcessRecording:
    return ProcessRecording(machine, process, begin, end)


@pytest.mark.parametrize(
    ("what", "files", "recordings", "last"),
    [
        (
            "three cycles",
            "---",
            [recorded("7", 0, 9), recorded("7", 40, 49), recorded("7", 20, 29)],
            [1, 1, 1],
        ),
        (
            "two ranks of two cycles each",
            "----",
            [recorded("7", 0, 9), recorded("8", 1, 8), recorded("7", 20, 29), recorded("8", 21, 28)],
            [2, 3, 2, 3],
        ),
        (
            "containers, whose processes all have one number",
            "--",
            [recorded("1", 0, 9), recorded("1", 5, 14)],
            [0, 1],
        ),
        ("files that name their ranks", "01", [recorded("1", 0, 9), recorded("1", 20, 29)], [0, 1]),
        ("machines", "--", [recorded("7", 0, 9), recorded("7", 20, 29, "node-2")], [0, 1]),
        ("unknown processes", "--", [recorded("", 0, 9), recorded("", 20, 29)], [0, 1]),
    ],
)
def test_the_last_recording_of_each_process(
    what: str, files: str, recordings: list[ProcessRecording], last: list[int]
) -> None:
    assert last_cycles(list(files), recordings) == last, what


def test_a_recording_lasts_from_its_first_event_to_its_last_on_the_common_clock() -> None:
    trace = drawn_trace("""
        main     |  0 10 | aten::mm
        stream 7 | 20 40 | sgemm
    """)
    trace = trace.with_metadata(origin_ns=1_000_000, properties={"host_name": "node-1"})
    machine, _, begin, end = recording_of(trace)
    assert (machine, begin, end) == ("node-1", 1_000_000, 1_040_000)


def test_an_empty_recording_is_of_no_process() -> None:
    assert recording_of(Trace({})) == ProcessRecording() == ("", "", 0, 0)


@pytest.mark.parametrize(("process", "number"), [("77", "77"), ("python 77", ""), ("", "")])
def test_a_process_is_known_by_a_number(process: str, number: str) -> None:
    trace = drawn_trace("other | 0 1 | x\nmain | 2 9 | aten::mm\nmain | 3 4 | aten::t", origin_ns=0)
    trace = trace.with_table(trace["tracks"].with_columns(process=Text.of(["1", process])))
    assert recording_of(trace) == ("", number, 0, 9000)


@pytest.mark.parametrize(
    ("capture", "properties", "machine"),
    [
        ({"host": "a"}, {"hostname": "b", "host_name": "c"}, "a"),
        ({"host": 7}, {"hostname": "b", "host_name": "c"}, "b"),
        ({}, {"host_name": "c"}, "c"),
        ({}, {}, ""),
    ],
)
def test_a_machine_has_the_name_of_its_capture_or_trace(
    capture: dict[str, object], properties: dict[str, object], machine: str
) -> None:
    assert machine_of(Trace({}).with_metadata(capture=capture, properties=properties)) == machine


@pytest.mark.parametrize(
    ("busy", "group", "usual"),
    [
        ([1, 2, 9, 5], [0, 0, 0, 1], [2, 2, 2, 5]),
        ([7, 3], [4, 4], [3, 3]),  # of two the shorter
        ([4, 1, 3, 2], [0, 0, 0, 0], [2, 2, 2, 2]),
        ([], [], []),
    ],
)
def test_the_usual_time_of_peers_is_their_median(
    busy: list[float], group: list[int], usual: list[float]
) -> None:
    times = np.array(busy, np.float64)
    assert usual_of_peers(times, np.array(group, np.int64)).tolist() == usual
    assert times.tolist() == busy
