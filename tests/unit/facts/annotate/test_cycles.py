"""Several files of one process are cycles of its profiler, and no ranks."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate.ranks import ProcessRecording, last_cycles, recording_of
from stepscope.testing import drawn_trace


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
