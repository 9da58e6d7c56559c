"""What source lines cost."""

from __future__ import annotations

import numpy as np
from drawings import drawn

from stepscope.facts.annotate import annotate
from stepscope.facts.timeline import Timeline
from stepscope.facts.timeline.source_lines import (
    LineCost,
    SourcePlace,
    frame_place,
    frames_around,
    line_costs,
)
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat


def costs(timeline: Timeline) -> dict[tuple[str, int, str], LineCost]:
    chosen = np.ones(len(timeline.trace.events), np.bool_)
    found = line_costs(timeline.index, chosen)
    return {(one.place.file, one.place.line, one.place.what): one for one in found}


FRAMES = """
    main     |   0 200 | ProfilerStep#1
    main     |   1 190 | train.py(10): main
    main     |   2  40 | ## forward ##
    main     |   3  39 | model.py(5): forward
    main     |   5  25 | aten::linear     | seq=1 fwd=0
    main     |   6   8 | cudaLaunchKernel | corr=1
    main     |  41  99 | ## backward ##
    autograd |  50  80 | AddmmBackward0   | seq=1 fwd=1
    autograd |  51  53 | cudaLaunchKernel | corr=2
    main     | 100 150 | ## optimizer ##
    main     | 110 140 | aten::add_
    stream 7 |  30  60 | sgemm            | corr=1
    stream 7 |  60 100 | sgemm            | corr=2
"""


def test_a_frame_costs_what_runs_inside_it_and_the_backward_of_it() -> None:
    forward = costs(drawn(FRAMES))["model.py", 5, "frame"]
    assert forward.place.name == "forward"
    assert (forward.cpu_ns, forward.own_cpu_ns, forward.backward_cpu_ns) == (36_000, 36_000, 30_000)
    assert (forward.device_ns, forward.own_device_ns) == (30_000, 30_000)
    assert forward.backward_device_ns == 40_000


def test_a_line_that_starts_backward_has_its_time() -> None:
    main = costs(drawn(FRAMES))["train.py", 10, "frame"]
    # It waits for autograd's thread meanwhile, so the work launched there is its work too.
    assert (main.device_ns, main.own_device_ns, main.backward_device_ns) == (70_000, 0, 0)
    assert (main.cpu_ns, main.own_cpu_ns, main.backward_cpu_ns) == (189_000, 153_000, 0)


def test_the_line_that_starts_backward_is_one_of_its_rank() -> None:
    """Another rank is at another line then, for longer."""
    text = FRAMES.replace("main     |  41  99 | ## backward ##", "main | 41 99 | train.py(20): fit")
    others = text.replace("train.py(20)", "other.py(30)").replace("1 190", "1 199")
    joined = concat(
        [annotate(drawn_trace(one, ranks=(at,), world_size=2)) for at, one in enumerate((others, text))]
    )
    chosen = joined["tracks"]["rank"][joined.events["track"]] == 1
    found = line_costs(Timeline(joined).index, chosen)
    assert {one.place.line: one.device_ns for one in found if one.place.file != "model.py"} == {
        10: 70_000,
        20: 40_000,
        30: 0,
    }


def test_backward_inside_the_same_frame_counts_once() -> None:
    """On a CPU, autograd runs in the thread that called it."""
    timeline = drawn("""
        main | 0 100 | ProfilerStep#1
        main | 1  99 | train.py(10): main
        main | 2  40 | ## forward ##
        main | 5  25 | aten::linear   | seq=1 fwd=0
        main | 41 90 | ## backward ##
        main | 50 80 | AddmmBackward0 | seq=1 fwd=1
    """)
    main = costs(timeline)["train.py", 10, "frame"]
    assert (main.cpu_ns, main.backward_cpu_ns) == (98_000, 0)


def test_a_frame_that_was_open_when_recording_started_has_no_line() -> None:
    """Its line is the one that was running then, and it encloses the steps."""
    timeline = drawn("""
        main |  0 210 | train.py(7): <module>
        main |  5 100 | ProfilerStep#1
        main | 10  40 | model.py(5): forward
        main | 15  30 | aten::linear
        main | 105 200 | ProfilerStep#2
    """)
    assert set(costs(timeline)) == {("model.py", 5, "frame")}


def test_no_line_takes_more_than_the_step() -> None:
    timeline = drawn("""
        main   |  0 100 | ProfilerStep#1
        main   |  5 130 | train.py(3): step
        loader |  5  95 | data.py(9): fetch
        second | 10  90 | data.py(9): fetch
    """)
    found = costs(timeline)
    assert found["data.py", 9, "frame"].cpu_ns == 90_000
    assert found["train.py", 3, "frame"].cpu_ns <= 100_000


def test_recursion_counts_once() -> None:
    timeline = drawn("""
        main | 0 100 | ProfilerStep#1
        main | 10 90 | tree.py(3): visit
        main | 20 80 | tree.py(3): visit
        main | 30 70 | aten::mm
    """)
    visit = costs(timeline)["tree.py", 3, "frame"]
    assert (visit.cpu_ns, visit.own_cpu_ns) == (80_000, 80_000)
    assert visit.calls == 2


MODEL = {
    "name": "model",
    "class": "Net",
    "file": "/p/net.py",
    "line": 3,
    "call_file": "/p/train.py",
    "call_line": 20,
    "children": [
        {"name": "a", "class": "Linear", "call_file": "/p/net.py", "call_line": 9},
        {
            "name": "b",
            "class": "Net",
            "file": "/p/net.py",
            "line": 3,
            "call_file": "/p/net.py",
            "call_line": 9,
        },
    ],
}
MODULES = """
    main     |   0 100 | ProfilerStep#1
    main     |  10  60 | stepscope.module:
    main     |  20  30 | stepscope.module: a
    main     |  30  50 | stepscope.module: b
    main     |  31  33 | cudaLaunchKernel | corr=1
    stream 7 |  40  60 | sgemm            | corr=1
"""


def test_a_line_costs_what_the_modules_that_it_calls_cost() -> None:
    found = costs(drawn(MODULES, MODEL))
    both = found["/p/net.py", 9, "call"]
    assert (both.place.name, both.modules, both.calls) == ("a, b", [1, 2], 2)
    assert (both.cpu_ns, both.own_cpu_ns) == (30_000, 30_000)
    assert (both.device_ns, both.own_device_ns) == (20_000, 20_000)
    model = found["/p/train.py", 20, "call"]
    assert (model.cpu_ns, model.own_cpu_ns, model.backward_cpu_ns) == (50_000, 20_000, 0)
    assert (model.device_ns, model.own_device_ns) == (20_000, 0)


def test_a_class_inside_itself_counts_once() -> None:
    assert costs(drawn(MODULES, MODEL))["/p/net.py", 3, "class"].cpu_ns == 50_000


def test_frames_around_a_kernel_are_those_around_its_launch() -> None:
    timeline = drawn(FRAMES)
    kernel = list(timeline.trace.events.text("name")).index("sgemm")
    assert frames_around(timeline.index, kernel) == [
        SourcePlace("model.py", 5, "frame", "forward"),
        SourcePlace("train.py", 10, "frame", "main"),
    ]


def test_only_frames_of_files_have_a_place() -> None:
    assert frame_place("torch/nn/module.py(7): _call_impl") is not None
    assert frame_place("<string>(1): <lambda>") is None
    assert frame_place("nn.Module: Linear_0") is None
    assert frame_place("aten::mm") is None
