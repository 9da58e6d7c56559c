"""The raw events of an operation as a Chrome trace."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from drawings import drawn, opened

from stepscope.facts.timeline import Timeline
from stepscope.read import read

STEP = """
    main     |   0 100 | ProfilerStep#1
    main     |   0  50 | ## forward ##
    main     |   5  20 | aten::conv2d        | seq=1 fwd=0 Input_Dims=[[4,3]]
    main     |   6   8 | cudaLaunchKernel    | corr=1
    main     |  20  30 | aten::relu
    main     |  50  90 | ## backward ##
    autograd |  55  60 | ConvolutionBackward0 | seq=1 fwd=1
    stream 7 |  30  60 | winograd            | corr=1
"""


@pytest.fixture
def timeline() -> Timeline:
    return drawn(STEP)


def told(timeline: Timeline, phase: str, *names: str) -> list[dict[str, Any]]:
    path = "/".join(opened(timeline, *names).path)
    exported = msgspec.to_builtins(timeline.chrome_trace(path))["traceEvents"]
    return [event for event in exported if event["ph"] == phase]


def test_slices_are_the_raw_events_with_their_arguments(timeline: Timeline) -> None:
    slices = told(timeline, "X", "step 1", "forward", "aten::conv2d")
    assert [(one["name"], one["ts"], one["dur"], one["args"]) for one in slices] == [
        ("aten::conv2d", 5.0, 15.0, {"Input Dims": [[4, 3]], "stepscope event": 2}),
        ("cudaLaunchKernel", 6.0, 2.0, {"stepscope event": 3}),
        ("winograd", 30.0, 30.0, {"stepscope event": 5}),
    ]


def test_a_launch_is_an_arrow_to_its_kernel(timeline: Timeline) -> None:
    (tail,) = told(timeline, "s", "step 1", "forward", "aten::conv2d")
    (head,) = told(timeline, "f", "step 1", "forward", "aten::conv2d")
    assert (tail["name"], tail["ts"], tail["args"]) == ("ac2g", 6.0, {"stepscope event": 3})
    assert (head["name"], head["ts"], head["args"]) == ("ac2g", 30.0, {"stepscope event": 5})
    assert tail["id"] == head["id"]
    assert head["bp"] == "e"


def test_no_arrow_leads_out_of_the_operation(timeline: Timeline) -> None:
    assert not told(timeline, "s", "step 1", "backward")
    assert [one["name"] for one in told(timeline, "s", "step 1")] == ["ac2g", "fwdbwd"]


def test_threads_and_processes_keep_their_names(timeline: Timeline) -> None:
    labels = told(timeline, "M", "step 1")
    named = {(one["name"], one["args"].get("name")) for one in labels}
    assert named >= {
        ("thread_name", "main"),
        ("thread_name", "stream 7"),
        ("process_name", "process 1"),
        ("process_name", "device 0"),
    }


def test_what_is_written_can_be_read_again(timeline: Timeline, tmp_path: Any) -> None:
    file = tmp_path / "part.json"
    file.write_bytes(msgspec.json.encode(timeline.chrome_trace("s1.0")))
    again = read(file)
    assert sorted(again.events.text("name")) == sorted(timeline.trace.events.text("name"))
    assert again.events["duration_ns"].sum() == timeline.trace.events["duration_ns"].sum()
