"""What each level of a drawn training step shows, from the step to its kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from drawings import drawn, names, opened, rows

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.timeline import Level, Timeline
from stepscope.facts.timeline.expand import Opened, open_operations
from stepscope.facts.timeline.lanes import Contents
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

NET = {
    "name": "net",
    "class": "Net",
    "children": [
        {"name": "fc1", "path": "fc1", "class": "Linear"},
        {"name": "fc2", "path": "fc2", "class": "Linear"},
    ],
}
STEP = """
    main     |   0 200 | ProfilerStep#1
    main     |  10  80 | stepscope.module:
    main     |  12  40 | stepscope.module: fc1
    main     |  14  38 | aten::linear                                     | seq=1
    main     |  15  20 | aten::t
    main     |  20  36 | aten::addmm
    main     |  22  24 | cudaLaunchKernel                                 | corr=1
    main     |  45  75 | stepscope.module: fc2
    main     |  50  70 | aten::linear                                     | seq=2
    main     |  55  58 | cudaLaunchKernel                                 | corr=2
    autograd |  80 110 | autograd::engine::evaluate_function: Fc2Backward | seq=2 fwd=1
    autograd |  82  84 | cudaLaunchKernel                                 | corr=3
    autograd | 110 120 | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    autograd | 120 150 | autograd::engine::evaluate_function: Fc1Backward | seq=1 fwd=1
    main     | 150 190 | Optimizer.step#SGD.step
    stream 7 |  34  54 | sgemm                                            | corr=1
    stream 7 |  65  95 | sgemm_nt                                         | corr=2
    stream 7 | 100 180 | sgemm_tn                                         | corr=3
"""


@pytest.fixture
def step() -> Timeline:
    return drawn(STEP, NET)


def test_the_first_level_is_the_steps(step: Timeline) -> None:
    assert rows(step.level()) == [("step", "step 1", 200, 130)]
    assert step.level().costs.events.tolist() == [18]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_level_that_several_threads_ask_for_is_opened_once(
    step: Timeline, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    asked: list[str] = []
    everybody = Barrier(6)

    def slow(contents: Contents, opened: Sequence[Opened], *options: Any) -> list[Level]:
        asked.extend("/".join(one.path) for one in opened)
        time.sleep(0.05)
        return open_operations(contents, opened, *options)

    monkeypatch.setattr("stepscope.facts.timeline.timeline.open_operations", slow)
    (stage, *_) = (f"s1.0/{one.id}" for one in step.level("s1.0").operations)

    def ask(number: int) -> None:
        everybody.wait()
        if ahead and not number:
            step.inside("s1.0")
        else:
            step.level(stage)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(ask, range(6)))
    assert asked.count(stage) == 1


def test_levels_are_forgotten_by_their_operations_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has a level of four pieces; there is room for two, and for the list of steps."""
    monkeypatch.setattr("stepscope.facts.timeline.timeline._KEPT_OPERATIONS", 12)
    timeline = drawn(
        "\n".join(
            f"main | {at} {at + 10} | ProfilerStep#{at}\nmain | {at} {at + 3} | aten::mm\n"
            f"main | {at + 4} {at + 6} | Optimizer.step#SGD.step"
            for at in (0, 10, 20)
        )
    )
    first, second, third = timeline.level().operations
    levels = {one.id: timeline.level(one.id) for one in (first, second, third)}
    assert [len(level) for level in levels.values()] == [4, 4, 4]
    assert timeline.level(third.id) is levels[third.id]
    assert timeline.level(second.id) is levels[second.id]
    again = timeline.level(first.id)
    assert again is not levels[first.id]
    assert rows(again) == rows(levels[first.id])


def test_one_begins_with_the_slowest_step() -> None:
    timeline = drawn("""
        main | 0   10 | ProfilerStep#1
        main | 1    9 | aten::mm
        main | 10  30 | ProfilerStep#2
        main | 11  29 | aten::mm
        main | 30  45 | ProfilerStep#3
        main | 31  44 | aten::mm
    """)
    assert timeline.start() == "s2.0"


def test_the_slowest_step_is_the_one_with_the_longest_window() -> None:
    """Step 2 takes longest on the CPU; the work of step 1 on the device runs on into it."""
    timeline = drawn("""
        main     | 0   10  | ProfilerStep#1
        main     | 1   9   | cudaLaunchKernel | corr=1
        stream 7 | 9   60  | gemm | corr=1
        main     | 10  40  | ProfilerStep#2
        main     | 11  39  | cudaLaunchKernel | corr=2
        stream 7 | 60  65  | gemm | corr=2
        main     | 65  80  | ProfilerStep#3
        main     | 66  79  | aten::mm
    """)
    assert timeline.step_lengths() == {(1, 0): 60_000, (2, 0): 5_000, (3, 0): 15_000}
    assert timeline.start() == "s1.0"


def test_one_does_not_begin_with_a_step_that_warms_up() -> None:
    timeline = drawn("""
        main | 0   100 | ProfilerStep#1
        main | 100 110 | ProfilerStep#2
        main | 110 125 | ProfilerStep#3
    """)
    assert timeline.start() == "s3.0"


def test_a_step_is_its_stages(step: Timeline) -> None:
    assert rows(opened(step, "step 1")) == [
        ("stage", "other", 10, 0),
        ("stage", "forward", 70, 50),
        ("stage", "backward", 70, 80),
        ("stage", "optimizer", 40, 0),
        ("stage", "other", 10, 0),
    ]


def test_bound_by_the_side_that_takes_longer(step: Timeline) -> None:
    level = opened(step, "step 1")
    found = dict(zip(names(level), level.costs.bound_by_device.tolist(), strict=True))
    assert found == {"other": False, "forward": False, "backward": True, "optimizer": False}


def test_a_stage_opens_through_the_model_that_fills_it(step: Timeline) -> None:
    level = opened(step, "step 1", "forward")
    assert level.through == ("Net",)
    assert level.passed == 1
    assert rows(level) == [("module", "fc1", 28, 20), ("module", "fc2", 30, 30)]


def test_backward_work_is_put_to_the_modules_in_their_own_order(step: Timeline) -> None:
    level = opened(step, "step 1", "backward")
    assert rows(level) == [("module", "fc2", 40, 80), ("module", "fc1", 30, 0)]


def test_a_module_opens_through_the_operator_that_fills_it(step: Timeline) -> None:
    level = opened(step, "step 1", "forward", "fc1")
    assert level.through == ("aten::linear",)
    assert rows(level) == [("event", "aten::t", 5, 0), ("event", "aten::addmm", 16, 20)]


def test_a_call_opens_to_its_kernels(step: Timeline) -> None:
    level = opened(step, "step 1", "forward", "fc1", "aten::addmm", "cudaLaunchKernel")
    assert rows(level) == [("event", "sgemm", 0, 20)]
    events = step.trace.events.text("name")
    assert [events[call] for call in level.launch] == ["cudaLaunchKernel"]


def test_the_device_side_is_aligned_and_says_how_far(step: Timeline) -> None:
    """The first product starts 22 us after fc1 on the CPU, the second 20 us after fc2."""
    forward = opened(step, "step 1", "forward")
    assert forward.shift_ns == 22_000
    assert opened(step, "step 1", "forward", "fc2").shift_ns == 10_000
    assert opened(step, "step 1", "optimizer").shift_ns == 0


def test_a_level_ends_with_its_longer_side(step: Timeline) -> None:
    backward = opened(step, "step 1", "backward")
    assert backward.shift_ns == 20_000
    assert (backward.start_ns, backward.end_ns) == (80_000, 160_000)


def test_forward_and_backward_name_each_other(step: Timeline) -> None:
    events = step.trace.events.text("name")
    backward = opened(step, "step 1", "backward")
    forward = opened(step, "step 1", "forward")
    assert [events[event] for event in backward.forward] == ["aten::linear", "aten::linear"]
    assert [events[event] for event in forward.backward] == [
        "autograd::engine::evaluate_function: Fc1Backward",
        "autograd::engine::evaluate_function: Fc2Backward",
    ]
    of_fc1 = step.levels(step.path_of(int(backward.forward[1])))
    assert [level.name for level in of_fc1] == ["trace", "step 1", "forward", "fc1"]


def test_a_step_has_no_partner_as_it_holds_forward_and_backward_alike(step: Timeline) -> None:
    steps = step.level()
    assert steps.forward.tolist() == steps.backward.tolist() == [-1]


def test_once_all_levels_are_open_an_event_is_in_the_innermost_of_them(step: Timeline) -> None:
    events = range(len(step.trace.events))
    one_by_one = [step.path_of(event) for event in events]
    inside = {path for one in step.open_all(step.start()) for path in one.every.paths}
    found = [step.path_of(event) for event in events]
    # An operation of one event opens on its own, but is no level of the whole step.
    outer = [path if path in inside else path.rpartition("/")[0] for path in one_by_one[1:]]
    assert found == [one_by_one[0], *outer]
    assert len({*found}) > 5


def test_the_path_of_an_event_leads_to_it(step: Timeline) -> None:
    event = list(step.trace.events.text("name")).index("sgemm_tn")
    path = step.path_of(event)
    *levels, inside = step.levels(path)
    assert len(inside) == 0
    assert [level.name for level in levels[1:]] + [inside.name] == [
        "step 1",
        "backward",
        "fc2",
        "Fc2Backward",
        "cudaLaunchKernel",
        "sgemm_tn",
    ]


def test_paths_stay_the_same_when_the_trace_is_opened_again(step: Timeline) -> None:
    def ids(level: Level) -> list[str]:
        return [one.id for one in level.operations]

    again = drawn(STEP, NET)
    for wanted in (("step 1",), ("step 1", "forward"), ("step 1", "backward", "fc2")):
        assert ids(opened(step, *wanted)) == ids(opened(again, *wanted))


def test_a_path_that_leads_nowhere_is_refused(step: Timeline) -> None:
    with pytest.raises(TraceError, match=r"no operation 'e999' is inside 's1\.0'"):
        step.level("s1.0/e999")


@pytest.mark.parametrize("path", ["x/" * 900, "s1.0/" + "x/" * 900, "x/" * 16_000])
def test_a_path_of_any_length_is_refused_at_once(path: str, step: Timeline) -> None:
    for ask in (step.level, step.levels, step.find, step.open_all):
        with pytest.raises(TraceError, match="no operation"):
            ask(path)


# -- threads, streams and ranks


THREADS = """
    main     |  0 100 | ProfilerStep#1
    main     | 10  90 | ## forward ##
    main     | 20  30 | aten::cat
    replica  | 20  80 | aten::conv2d
    replica  | 22  24 | cudaLaunchKernel | corr=1
    other    | 30  60 | aten::conv1d
    other    | 32  34 | cudaLaunchKernel | corr=2
    stream 1 | 40  60 | fprop_2d         | corr=1
    stream 2 | 40  50 | fprop_1d         | corr=2
"""


def test_of_each_kind_the_longest_is_shown() -> None:
    level = opened(drawn(THREADS), "step 1", "forward")
    assert [(one.name, one.kind, one.shown) for one in level.resources] == [
        ("main", "cpu", False),
        ("replica", "cpu", True),
        ("other", "cpu", False),
        ("stream 1", "device", True),
        ("stream 2", "device", False),
    ]
    assert names(level) == ["aten::conv2d"]


@pytest.mark.parametrize(("busy", "shown"), [((49, 50), 0), ((50, 49), 0), ((40, 50), 1)])
def test_of_devices_that_are_busy_for_as_long_the_first_is_shown(busy: tuple[int, int], shown: int) -> None:
    trace = drawn_trace(f"""
        main     |  0 100 | ProfilerStep#1
        main     |  0  90 | ## forward ##
        main     |  1   2 | cudaLaunchKernel | corr=1
        main     |  3   4 | cudaLaunchKernel | corr=2
        stream 1 | 10 {10 + busy[0]} | sgemm | corr=1
        stream 2 | 10 {10 + busy[1]} | sgemm | corr=2
    """)
    tracks = trace["tracks"]
    number = np.array([{"stream 2": 1, "main": -1}.get(name or "", 0) for name in tracks.text("name")])
    timeline = Timeline(annotate(trace.with_table(tracks.with_columns(device=number))))
    level = opened(timeline, "step 1", "forward")
    listed = [one.name for one in level.resources if one.kind == "device" and one.shown]
    assert listed == [f"stream {shown + 1}"]


def test_the_others_are_shown_when_asked_for() -> None:
    timeline = drawn(THREADS)
    level = opened(timeline, "step 1", "forward", every=True)
    assert all(one.shown for one in level.resources)
    assert names(level) == ["aten::cat", "aten::conv2d", "aten::conv1d"]


def ranks(*lengths: int) -> Timeline:
    """A step of each rank that lasts as long as told, in us."""
    parts = [
        annotate(
            drawn_trace(f"""
                main | 0 {length} | ProfilerStep#1
                main | 0 {length} | ## forward ##
                main | 1 {length} | aten::mm
            """)
        )
        for length in lengths
    ]
    return Timeline(concat([of_rank(part, rank) for rank, part in enumerate(parts)]))


def test_of_the_ranks_the_straggler_is_shown() -> None:
    level = ranks(100, 120, 110).level()
    assert [one.id for one in level.operations] == ["s1.1"]
    assert [(one.name, one.busy_ns, one.shown) for one in level.resources] == [
        ("rank 0", 100_000, False),
        ("rank 1", 120_000, True),
        ("rank 2", 110_000, False),
    ]
    assert (level.costs.events.tolist(), level.hidden) == ([3], 6)


def test_the_other_ranks_open_too() -> None:
    timeline = ranks(100, 120)
    assert [one.id for one in timeline.level(every=True).operations] == ["s1.0", "s1.1"]
    assert rows(timeline.level("s1.0")) == [("stage", "forward", 100, 0)]


def test_pieces_that_count_their_steps_alike_are_steps_of_their_own() -> None:
    step = "main | {0} {1} | ProfilerStep#1\nmain | {0} {1} | ## forward ##\n"
    timeline = drawn(step.format(0, 100) + step.format(100, 150))
    assert rows(timeline.level()) == [("step", "step 1", 100, 0), ("step", "step 2", 50, 0)]
    assert len(timeline.level("s1.0")) == len(timeline.level("s2.0")) == 1


def test_a_range_of_the_user_is_an_operation_with_its_own_level() -> None:
    timeline = drawn("""
        main | 0 100 | ProfilerStep#1
        main | 0 100 | ## forward ##
        main | 5  55 | my section | cat=annotation
        main | 6  26 | aten::mm
        main | 30 50 | aten::add
        main | 60 95 | aten::relu
    """)
    assert names(opened(timeline, "step 1", "forward")) == ["my section", "aten::relu"]
    assert names(opened(timeline, "step 1", "forward", "my section")) == ["aten::mm", "aten::add"]


def test_an_event_across_stages_is_passed_if_it_holds_others_else_stands_beside_them() -> None:
    level = opened(
        drawn("""
            main   |  0 100 | ProfilerStep#1
            main   |  0  60 | ## forward ##
            main   | 60 100 | ## backward ##
            loader | 10  90 | train.py(3): work
            loader | 20  30 | aten::stack
            waiter | 50  80 | aten::wait
        """),
        "step 1",
        every=True,
    )
    assert rows(level) == [
        ("stage", "forward", 60, 0),
        ("stage", "backward", 40, 0),
        ("event", "aten::wait", 30, 0),
    ]
    assert level.passed == 2


# -- what says nothing of its own


FRAMES = """
    main     |  0 200 | ProfilerStep#1
    main     |  0 100 | nn.Module: Net_0
    main     |  1   2 | torch/nn/module.py(9): __getattr__
    main     |  2 100 | net.py(7): forward
    main     |  4  40 | nn.Module: Linear_0
    main     |  5  39 | aten::linear
    main     | 41  43 | torch/nn/module.py(9): __getattr__
    main     | 45  99 | net.py(9): heads
    main     | 46  70 | nn.Module: Linear_1
    main     | 47  69 | aten::linear
    main     | 71  98 | nn.Module: Linear_2
    main     | 72  97 | aten::linear
    main     | 100 200 | ## backward ##
"""


def test_frames_around_calls_give_way_to_these_and_trifles_are_left_out() -> None:
    level = opened(drawn(FRAMES), "step 1", "forward")
    assert names(level) == ["Linear_0", "Linear_1", "Linear_2"]
    assert level.through == ("Net_0", "forward net.py", "heads net.py")
    assert level.passed == 5


def test_an_operation_that_fills_its_parent_gives_way_to_what_is_inside_it() -> None:
    level = opened(
        drawn("""
            main |   0 200 | ProfilerStep#1
            main |   0 100 | ## forward ##
            main |   0  99 | aten::conv2d
            main |   0   2 | aten::empty
            main |   2  98 | aten::convolution
            main |   5  60 | aten::pad
            main |  60  90 | aten::bmm
            main |  99 100 | aten::relu
            main | 100 200 | ## backward ##
        """),
        "step 1",
        "forward",
        "aten::conv2d",
    )
    assert level.through == ("aten::convolution",)
    assert names(level) == ["aten::empty", "aten::pad", "aten::bmm"]


def test_an_operator_that_works_itself_is_not_opened_for_what_little_is_inside() -> None:
    """A matrix product on the CPU: inside it are views, which take none of its time."""
    level = opened(
        drawn("""
            main |   0 200 | ProfilerStep#1
            main |   0 100 | ## forward ##
            main |   0  99 | aten::linear
            main |   1  97 | aten::mm
            main |   2   3 | aten::resolve_conj
            main |  97  98 | aten::view
            main |  99 100 | aten::relu
            main | 100 200 | ## backward ##
        """),
        "step 1",
        "forward",
        "aten::linear",
    )
    assert names(level) == ["aten::mm", "aten::view"]


def test_what_launches_work_is_never_opened_for_being_small() -> None:
    level = opened(
        drawn("""
            main     |   0 200 | ProfilerStep#1
            main     |   0 100 | stepscope.module:
            main     |   0   1 | cudaLaunchKernel | corr=1
            main     |   1  99 | stepscope.module: fc
            main     |   2  50 | aten::mm
            main     | 100 200 | ## backward ##
            stream 7 |  10  90 | sgemm            | corr=1
        """),
        "step 1",
        "forward",
    )
    assert rows(level) == [("event", "cudaLaunchKernel", 1, 80), ("module", "fc", 98, 0)]


WRAPPED = """
    main     |   0 100 | ProfilerStep#1
    main     |   1  90 | stepscope.module:
    main     |   2  60 | stepscope.module:layer
    main     |   4  20 | rng state
    main     |  21  58 | stepscope.module:layer.wrapped
    main     |  22  35 | stepscope.module:layer.wrapped.one
    main     |  24  26 | cudaLaunchKernel | corr=1
    main     |  36  57 | stepscope.module:layer.wrapped.two
    main     |  38  40 | cudaLaunchKernel | corr=2
    main     |  61  88 | stepscope.module:head
    main     |  62  64 | cudaLaunchKernel | corr=3
    stream 7 |  30  45 | sgemm            | corr=1
    stream 7 |  45  60 | sgemm            | corr=2
    stream 7 |  70  75 | sgemm            | corr=3
"""


def test_a_wrapper_gives_way_to_what_is_inside_the_one_module_that_it_calls() -> None:
    """As the one that checkpoints a layer, though it spends a third of its time by itself."""
    level = opened(drawn(WRAPPED), "step 1", "forward", "layer")
    assert names(level) == ["rng state", "one", "two"]
    assert level.through == ("wrapped",)


def test_a_module_that_launches_work_beside_the_one_it_calls_is_no_wrapper() -> None:
    timeline = drawn(
        f"""
        {WRAPPED}
        main     |   5   6 | cudaLaunchKernel | corr=4
        stream 7 |  60  61 | philox           | corr=4
        """
    )
    assert names(opened(timeline, "step 1", "forward", "layer")) == ["rng state", "wrapped"]


# -- what repeats


def layers(count: int) -> str:
    """A model of `count` alike blocks; the third takes twice as long."""
    lines, at = ["main | 0 1000 | ProfilerStep#1", "main | 0 900 | stepscope.module:"], 10
    for number in range(count):
        length = 40 if number == 2 else 20
        lines += [
            f"main | {at} {at + length} | stepscope.module: h.{number}",
            f"main | {at + 1} {at + 5} | stepscope.module: h.{number}.fc",
            f"main | {at + 6} {at + length} | aten::gelu",
        ]
        at += length
    return "\n".join([*lines, "main | 500 800 | stepscope.module: head"])


def blocks(count: int) -> dict[str, object]:
    inside = [
        {
            "name": str(number),
            "path": f"h.{number}",
            "class": "Block",
            "children": [{"name": "fc", "path": f"h.{number}.fc", "class": "Linear"}],
        }
        for number in range(count)
    ]
    return {
        "name": "net",
        "path": "",
        "class": "Net",
        "children": [
            {"name": "h", "path": "h", "class": "ModuleList", "children": inside},
            {"name": "head", "path": "head", "class": "Linear"},
        ],
    }


def test_copies_of_a_block_are_folded_with_their_spread() -> None:
    level = opened(drawn(layers(12), blocks(12)), "step 1", "forward")
    assert rows(level) == [("repeat", "h.0 … 11", 260, 0), ("module", "head", 300, 0)]
    spread = level.operations[0].spread
    assert spread is not None
    assert (spread.count, spread.least_ns, spread.most_ns) == (12, 20_000, 40_000)
    assert spread.mean_ns == 21_667


def test_a_fold_opens_to_its_blocks_and_names_the_slowest() -> None:
    timeline = drawn(layers(12), blocks(12))
    fold = opened(timeline, "step 1", "forward").operations[0]
    inside = opened(timeline, "step 1", "forward", fold.name)
    assert names(inside) == [f"h.{number}" for number in range(12)]
    assert fold.spread is not None
    assert inside.operations[2].id == fold.spread.slowest


def test_recomputed_work_is_counted() -> None:
    timeline = drawn("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | aten::linear                                | seq=1
        autograd | 30  90 | autograd::engine::evaluate_function: Checkpoint | seq=1 fwd=1
        autograd | 35  50 | aten::addmm                                 | seq=2
        autograd | 55  85 | aten::mm
    """)
    inside = opened(timeline, "step 1", "backward", "Checkpoint")
    assert names(inside) == ["aten::addmm", "aten::mm"]
    assert inside.costs.recompute_ns.tolist() == [15_000, 0]
    around = opened(timeline, "step 1", "backward")
    assert around.costs.recompute_ns.tolist() == [15_000]


def test_an_empty_trace_has_an_empty_level() -> None:
    assert rows(drawn("").level()) == []


def test_work_that_nothing_launched_is_in_the_step_in_which_it_runs() -> None:
    timeline = drawn("stream 7 | 0 10 | sgemm")
    assert timeline.level().costs.events.tolist() == [1]
    assert timeline.path_of(0) == "s0.0/e0"


def test_a_step_of_kernels_alone_holds_them_and_no_time_of_a_cpu() -> None:
    timeline = drawn("""
        stream 7 |  0 10 | sgemm
        stream 7 | 12 20 | relu
        stream 9 |  5 15 | ncclDevKernel_AllReduce
    """)
    level = timeline.level("s0.0")
    assert names(level) == ["sgemm", "ncclDevKernel_AllReduce", "relu"]
    assert level.costs.device_ns.tolist() == [10_000, 10_000, 8_000]
    assert level.costs.cpu_ns.tolist() == [0, 0, 0]


def test_all_levels_below_an_operation_at_once() -> None:
    timeline = drawn(WRAPPED)
    depths = [
        [("/".join(one.shown.path), names(one.shown), one.shown.through) for one in depth]
        for depth in timeline.below("s1.0")
    ]
    opened_alone = [
        [(path, names(timeline.level(path)), timeline.level(path).through) for path, *_ in depth]
        for depth in depths
    ]
    assert depths == opened_alone
    assert [found for _, found, _ in depths[-1]] == [["sgemm"], ["sgemm"]]


def test_all_threads_are_shown_only_if_asked_for() -> None:
    timeline = drawn("""
        main   | 0 100 | ProfilerStep#1
        main   | 1  90 | aten::mm
        other  | 5  20 | aten::add
    """)
    _, (stage,) = timeline.below("s1.0")
    assert stage.shown.hides
    assert not stage.every.hides
    assert (names(stage.shown), names(stage.every)) == (["aten::mm"], ["aten::mm", "aten::add"])


def of_steps(count: int) -> tuple[Timeline, list[str]]:
    """Steps that are alike, and their paths."""
    steps = range(1, count + 1)
    timeline = drawn(
        "".join(
            f"""
        main | {n}00 {n}99 | ProfilerStep#{n}
        main | {n}10 {n}90 | aten::linear
        main | {n}20 {n}40 | aten::mm
        main | {n}50 {n}70 | aten::add
    """
            for n in steps
        )
    )
    return timeline, [f"s{n}.0" for n in steps]


def test_threads_that_open_different_steps_at_once_each_get_their_own() -> None:
    timeline, each = of_steps(8)
    paths = each * 20

    def opened_paths(path: str) -> set[str]:
        return {"/".join(one.every.path[:1]) for one in timeline.open_all(path)}

    with ThreadPoolExecutor(len(each)) as threads:
        assert list(threads.map(opened_paths, paths)) == [{path} for path in paths]


def test_steps_that_were_opened_whole_stay_open() -> None:
    timeline, each = of_steps(5)
    opened = {path: timeline.open_all(path) for path in each}
    for path, levels in opened.items():
        again = timeline.open_all(path)
        assert all(one is other for one, other in zip(levels, again, strict=True))
        assert all(timeline.level("/".join(one.every.path), True) is one.every for one in levels)


def test_the_costliest_levels_alone_are_the_same_levels() -> None:
    """Opened without the others, which come later only if more are asked for."""
    text = "main | 0 999 | ProfilerStep#1\n" + "".join(
        f"""
        main | {n * 100}      {n * 100 + 50 + n} | aten::op{n}
        main | {n * 100 + 1} {n * 100 + 40 + n} | aten::inner{n}
        main | {n * 100 + 2} {n * 100 + 20 - n} | aten::small{n}
        main | {n * 100 + 21} {n * 100 + 30}    | aten::other{n}
    """
        for n in range(1, 9)
    )
    whole, growing = drawn(text), drawn(text)
    costliest = [one.every.path for one in sorted(whole.open_all("s1.0"), key=lambda one: -one.cost_ns)]
    for most in range(1, len(costliest) + 2):
        opened = growing.open_all("s1.0", most)
        assert sorted(one.every.path for one in opened) == sorted(costliest[:most])
        # A link leads inside what is not opened yet, too.
        assert all(growing.path_of(event).startswith(whole.path_of(event)) for event in range(1, 33))
    assert most > 10


def test_levels_that_are_opened_ahead_in_parts_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "main | 100 999 | ProfilerStep#1\n" + "".join(
        f"""
        main | {at} {at + 80} | aten::linear{at}
        main | {at + 10} {at + 40} | aten::mm
        main | {at + 50} {at + 70} | aten::add
    """
        for at in range(110, 900, 100)
    )
    for events, parts in ((1, 8), (6, 4), (1000, 1)):
        monkeypatch.setattr("stepscope.facts.timeline.timeline._OPENED_EVENTS", events)
        timeline = drawn(text)
        stage = max(timeline.level("s1.0").paths, key=lambda path: len(timeline.level(path)))
        assert len(list(timeline.open_inside(stage))) == 1 + parts
        assert len(timeline.inside(stage)) == 8


def test_levels_opened_together_are_those_that_are_opened_one_by_one() -> None:
    timeline = drawn(
        "".join(
            f"""
        main  | {n}00 {n}99 | ProfilerStep#{n}
        main  | {n}10 {n}50 | aten::linear
        main  | {n}20 {n}40 | aten::mm
        main  | {n}30 {n}35 | cudaLaunchKernel | corr={n}
        main  | {n}60 {n}90 | aten::add
        main  | {n}70 {n}80 | aten::copy_
        stream 7 | {n}40 {n}60 | sgemm | corr={n}
        other | {n}05 {n}20 | aten::relu
    """
            for n in range(1, 4)
        )
    )
    for path in ("", "s1.0", "s1.0/t0"):
        for every in (False, True):
            level = timeline.level(path, every)
            opens = {one for one, count in zip(level.paths, level.costs.events, strict=True) if count > 1}
            inside = timeline.inside(path, every)
            assert {"/".join(one.path) for one in inside} == opens
            for one in inside:
                alone = Timeline(timeline.trace).level("/".join(one.path), every)
                assert one.paths == alone.paths
                assert one.costs.cpu_ns.tolist() == alone.costs.cpu_ns.tolist()
                assert timeline.level("/".join(one.path), every) is one


def test_a_step_is_as_busy_as_the_device_is_in_its_window() -> None:
    """Work that a step launches may end in the next one's window, where it counts."""
    timeline = Timeline(
        annotate(
            drawn_trace("""
        main     |   0 100 | ProfilerStep#0
        main     |  10  20 | cudaLaunchKernel | corr=1
        stream 7 |  20  80 | gemm | corr=1
        main     | 100 200 | ProfilerStep#1
        main     | 110 115 | cudaLaunchKernel | corr=2
        main     | 116 120 | cudaLaunchKernel | corr=3
        stream 7 | 120 190 | gemm | corr=2
        stream 8 | 150 260 | gemm | corr=3
        main     | 200 300 | ProfilerStep#2
        main     | 210 215 | cudaLaunchKernel | corr=4
        stream 7 | 220 290 | gemm | corr=4
    """)
        )
    )
    steps = timeline.trace["steps"]
    assert timeline.level("").costs.device_ns.tolist() == steps["device_busy_ns"].tolist()
    assert steps["device_busy_ns"].tolist() == [60_000, 140_000, 30_000]
