"""Where steps begin and end, by the best evidence there is."""

from __future__ import annotations

import re

import numpy as np
import pytest
from facts import of_events, us, warning_codes
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.ranges import CHOSEN
from stepscope.facts.annotate.steps.step_table import coverage_note, messages, require_steps
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.testing import drawn_trace
from stepscope.trace.missing_records import TIME_LEFT_OUT
from stepscope.trace.row_order import running_span
from stepscope.trace.schema import CONTEXTS
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata, Trace


def stepped(text: str) -> Trace:
    return find_steps(link_launches(drawn_trace(text)))


def steps(trace: Trace) -> list[tuple[object, ...]]:
    return us(trace, "steps", "step", "start_ns", "end_ns", "evidence")


def test_the_profilers_steps_tile_the_time() -> None:
    trace = stepped("""
        main |   0  98 | ProfilerStep#5
        main | 100 198 | ProfilerStep#6
        main |  10  20 | aten::mm
        main | 110 120 | aten::add
    """)
    assert steps(trace) == [(5, 0, 100, "profiler_step"), (6, 100, 198, "profiler_step")]
    assert of_events(trace, "step") == {
        "ProfilerStep#5": 5,
        "ProfilerStep#6": 6,
        "aten::mm": 5,
        "aten::add": 6,
    }


@pytest.mark.parametrize(("later", "number"), [(0, 5), (1, 105), (40, 105)])
def test_marks_of_a_second_profiler_are_no_steps(later: int, number: int) -> None:
    trace = stepped(f"""
        main  |   0  98 | ProfilerStep#5
        main  | 100 198 | ProfilerStep#6
        main  | {later} {98 - later % 40} | ProfilerStep#{number}
        main  | {100 + later} {198 - later % 40} | ProfilerStep#{number + 1}
        main  |  10  20 | aten::mm
    """)
    assert steps(trace) == [(5, 0, 100, "profiler_step"), (6, 100, 198, "profiler_step")]


def test_marks_that_go_back_are_counted_from_the_first() -> None:
    trace = annotate(
        drawn_trace("""
            main     |   0  98 | ProfilerStep#7
            main     | 100 198 | ProfilerStep#0
            main     | 200 298 | ProfilerStep#0
            main     | 10  20  | cudaLaunchKernel | corr=1
            stream 7 | 30  50  | sgemm            | corr=1
            main     | 210 220 | cudaLaunchKernel | corr=2
            stream 7 | 230 270 | sgemm            | corr=2
        """)
    )
    busy = us(trace, "steps", "step", "start_ns", "device_busy_ns")
    assert busy == [(7, 0, 20), (8, 100, 0), (9, 200, 40)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("train", "eval"), [(0, 0, 20, 0), (1, 30, 100, 40)]),  # both by the step's number
        (("gen", "disc"), [(0, 0, 20, 0), (1, 20, 30, 0), (2, 30, 100, 40), (3, 100, 110, 0)]),
        (("eval", "eval"), [(0, 0, 20, 0), (1, 20, 30, 0), (2, 30, 100, 40), (3, 100, 110, 0)]),
    ],
)
def test_marks_of_another_loop_are_no_steps_and_numbers_are_unique(labels, expected) -> None:
    first, second = labels
    trace = annotate(
        drawn_trace(f"""
            main     |   0  20 | {first}#step_num=0
            main     |  20  30 | {second}#step_num=0
            main     |  30  90 | {first}#step_num=1
            main     | 100 110 | {second}#step_num=1
            main     |  40  50 | cudaLaunchKernel | corr=1
            stream 7 |  60 100 | sgemm            | corr=1
        """)
    )
    found = us(trace, "steps", "step", "start_ns", "window_end_ns", "device_busy_ns")
    assert found == expected


def test_steps_that_do_not_follow_each_other_keep_their_gap() -> None:
    trace = stepped("""
        main |   0  98 | ProfilerStep#5
        main | 500 598 | ProfilerStep#20
    """)
    assert steps(trace) == [(5, 0, 98, "profiler_step"), (20, 500, 598, "profiler_step")]


def test_a_last_range_that_holds_no_step_is_left_out() -> None:
    trace = stepped("""
        main |   0 100 | ProfilerStep#5
        main | 100 200 | ProfilerStep#6
        main | 200 201 | ProfilerStep#7
    """)
    assert [step[0] for step in steps(trace)] == [5, 6]
    assert warning_codes(trace) == {"cut_off_step": 1}


@pytest.mark.parametrize(("last", "kept"), [("cudaDeviceSynchronize", [5, 6]), ("aten::add", [5, 6, 7])])
def test_a_last_range_that_only_waits_for_the_device_is_no_step(last: str, kept: list[int]) -> None:
    """`torch.cuda.synchronize()` after the loop, in the profiler's `with`, while the device has a queue."""
    lines, id = [f"main | 202 260 | {last}", "main | 200 262 | ProfilerStep#7"], 0
    for step, begin in ((5, 0), (6, 100)):
        lines.append(f"main | {begin} {begin + 100} | ProfilerStep#{step}")
        for at in range(begin, begin + 100, 20):
            id += 1
            lines.append(f"main | {at} {at + 9} | aten::mm")
            lines.append(f"main | {at + 2} {at + 4} | cudaLaunchKernel | corr={id}")
            lines.append(f"stream 7 | {26 * id} {26 * id + 26} | sgemm | corr={id}")
    assert [step[0] for step in steps(stepped("\n".join(lines)))] == kept


def trained(begin: int, number: int, length: int = 100) -> list[str]:
    """A marked step: a layer with a gradient, backward, and an update that ends after 90 us."""
    return [
        f"main | {begin} {begin + length} | ProfilerStep#{number}",
        f"main | {begin + 5} {begin + 40} | aten::linear | seq={number}",
        f"main | {begin + 50} {begin + 70} | MmBackward0 | seq={number} fwd=1",
        f"main | {begin + 75} {begin + 90} | Optimizer.step#SGD.step",
    ]


def acted(begin: int) -> str:
    """A mark of a step in which a layer runs without a gradient."""
    mark = f"main | {begin} {begin + 100} | ProfilerStep#{begin // 100 + 5}"
    return f"{mark}\nmain | {begin + 9} {begin + 90} | aten::linear"


EVALUATION = (
    "evaluation, or other work of the model without gradients, takes {} of the recorded time; "
    "it is in no step"
)


@pytest.mark.parametrize(
    ("lines", "kept", "note"),
    [
        # in the mark of the last step, after its update
        (
            [*trained(200, 7, 400), "main | 300 320 | aten::stack", "main | 320 590 | aten::linear"],
            [(5, 0, 100), (6, 100, 200), (7, 200, 290)],
            EVALUATION.format("0.31 ms, 52%"),
        ),
        # in a mark of its own, as the profiler goes on after the loop, or in one for each batch
        (
            ["main | 200 600 | ProfilerStep#7", "main | 320 590 | aten::linear"],
            [(5, 0, 100), (6, 100, 200)],
            EVALUATION.format("0.4 ms, 67%"),
        ),
        ([acted(200), acted(300)], [(5, 0, 100), (6, 100, 200)], EVALUATION.format("0.2 ms, 50%")),
        # a metric, and an average of the weights
        (
            [*trained(200, 7, 400), "main | 320 590 | aten::mean", "main | 320 590 | aten::lerp_"],
            [(5, 0, 100), (6, 100, 200), (7, 200, 600)],
            "",
        ),
    ],
)
def test_an_evaluation_after_the_last_update_is_in_no_step(
    lines: list[str], kept: list[tuple[int, int, int]], note: str
) -> None:
    trace = stepped("\n".join([*trained(0, 5), *trained(100, 6), *lines]))
    assert [row[:3] for row in steps(trace)] == kept
    assert messages(trace, 0, TIME_LEFT_OUT) == [note] * bool(note)


@pytest.mark.parametrize("last", ["seq=7", ""], ids=["as in training", "nothing known of gradients"])
def test_a_last_step_that_is_cut_off_before_its_backward_pass_is_no_evaluation(last: str) -> None:
    """As in a file of which a viewer saved a part, where marks keep their lengths."""
    lines = [*trained(0, 5), *trained(100, 6), "main | 200 300 | ProfilerStep#7"]
    lines += [f"main | 205 240 | aten::linear | {last}" if last else "main | 205 240 | aten::linear"]
    text = "\n".join(lines)
    trace = stepped(text if last else re.sub(r" \| seq=\d", "", text))
    assert [row[:3] for row in steps(trace)] == [(5, 0, 100), (6, 100, 200)]
    assert messages(trace, 0, TIME_LEFT_OUT) == [
        "an evaluation, or a step that is cut off before its backward pass, takes 0.1 ms, 33% of the "
        "recorded time; it is in no step"
    ]


@pytest.mark.parametrize("evaluates", [(0, 1, 2), (0, 2), (0,)])
def test_an_evaluation_in_earlier_steps_is_part_of_them(evaluates: tuple[int, ...]) -> None:
    lines = [line for number in range(3) for line in trained(100 * number, number)]
    lines += [f"main | {100 * number + 92} {100 * number + 98} | aten::linear" for number in evaluates]
    trace = stepped("\n".join(lines))
    assert us(trace, "steps", "start_ns", "end_ns") == [(0, 100), (100, 200), (200, 300)]
    assert warning_codes(trace) == {}


def test_steps_that_update_now_and_then_are_no_evaluation() -> None:
    """Of accumulated gradients, and of an agent that acts several times before it learns."""
    lines = [acted(0), acted(100), *trained(200, 7), acted(300)]
    assert len(steps(stepped("\n".join(lines)))) == 4


@pytest.mark.parametrize(("length", "left"), [(400, "0.4 ms of 0.64 ms"), (20, "")])
def test_device_work_between_two_cycles_of_a_profiler_is_mentioned(length: int, left: str) -> None:
    lines = ["main | 300 310 | cudaLaunchKernel | corr=99", f"stream 7 | 310 {310 + length} | eval | corr=99"]
    for number, at in enumerate((0, 100, 200, 1000, 1100, 1200)):
        lines.append(f"main | {at} {at + 100} | ProfilerStep#{number + 6 * (at >= 1000)}")
        lines += [f"main | {at + 5} {at + 10} | cudaLaunchKernel | corr={number + 1}"]
        lines += [f"stream 7 | {at + 20} {at + 60} | sgemm | corr={number + 1}"]
    found = messages(stepped("\n".join(lines)), 0, "device_outside_steps")
    assert found == [f"{left} of device work is in no step: the work between steps"] * bool(left)


def test_a_long_evaluation_hides_no_steps() -> None:
    lines = [*trained(0, 5), *trained(100, 6), *trained(200, 7, 5000), "main | 320 5100 | aten::linear"]
    assert [row[:3] for row in steps(stepped("\n".join(lines)))] == [
        (5, 0, 100),
        (6, 100, 200),
        (7, 200, 290),
    ]


def test_a_file_that_is_cut_off_before_the_work_of_its_devices_says_nothing_of_them() -> None:
    """Kineto writes calls of the runtime and kernels after all operators."""
    text = "\n".join(
        f"main | {at} {at + 100} | ProfilerStep#{at // 100}\nmain | {at + 5} {at + 95} | aten::mm"
        for at in (0, 100, 200)
    )
    for devices, codes in (((), set()), (({"id": 0, "name": "A100"},), {"work_missing"})):
        trace = drawn_trace(text, devices=devices).with_warnings([("truncated_file", "the file ends", 1)])
        assert {*warning_codes(find_steps(link_launches(trace)))} & {"work_missing"} == codes


@pytest.mark.parametrize(
    ("operators", "last", "kept"), [(3, "mm", [4, 5, 6]), (5, "mm", [4, 5, 6, 7]), (3, "add_", [4, 5, 6, 7])]
)
def test_a_last_range_with_less_than_half_of_the_records_was_cut_off(
    operators: int, last: str, kept: list[int]
) -> None:
    """Unless it ends as others do, with an update, and only does less."""
    lines = [f"main | {100 * step} {100 * step + 100} | ProfilerStep#{step}" for step in (4, 5, 6)]
    lines.append("main | 700 760 | ProfilerStep#7")
    for step, count, ends in ((4, 8, "add_"), (5, 8, "add_"), (6, 8, "add_"), (7, operators, last)):
        names = ["mm"] * (count - 1) + [ends]
        places = (100 * step + 10 * at for at in range(count))
        lines += [f"main | {at} {at + 9} | aten::{name}" for at, name in zip(places, names, strict=True)]
    trace = stepped("\n".join(lines))
    assert [step[0] for step in steps(trace)] == kept
    assert warning_codes(trace) == ({"cut_off_step": 1} if len(kept) == 3 else {})


def test_of_a_capture_only_the_steps_that_it_says_it_recorded_count() -> None:
    trace = drawn_trace(
        """
        main |   0 100 | ProfilerStep#5
        main | 100 200 | ProfilerStep#6
        main | 200 290 | ProfilerStep#7
        """,
        capture={"steps_recorded": [5, 6]},
    )
    assert [step[0] for step in steps(find_steps(link_launches(trace)))] == [5, 6]


def test_device_work_belongs_to_the_step_of_its_launch() -> None:
    trace = stepped("""
        main     |   0 100 | ProfilerStep#1
        main     | 100 200 | ProfilerStep#2
        main     |  90  92 | cudaLaunchKernel | corr=1
        main     | 110 112 | cudaLaunchKernel | corr=2
        stream 7 | 120 150 | late             | corr=1
        stream 7 | 140 160 | second           | corr=2
        stream 7 |  10  20 | unlinked         | corr=9
    """)
    found = of_events(trace, "step")
    assert (found["late"], found["second"], found["unlinked"]) == (1, 2, 1)
    assert us(trace, "steps", "device_end_ns") == [(150,), (160,)]
    windows = us(trace, "steps", "window_start_ns", "window_end_ns")
    assert windows == [(0, 150), (150, 200)]


def test_busy_time_is_a_union() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  12 | cudaLaunchKernel | corr=1
        main     | 12  14 | cudaLaunchKernel | corr=2
        stream 7 | 20  60 | a                | corr=1
        stream 8 | 40  80 | b                | corr=2
    """)
    )
    assert us(trace, "steps", "device_busy_ns", "device_idle_ns") == [(60, 40)]


def test_otherwise_a_step_ends_with_the_optimizer() -> None:
    trace = stepped("""
        main |  0  10 | aten::mm
        main | 10  20 | Optimizer.step#SGD.step
        main | 25  35 | aten::mm
        main | 35  45 | Optimizer.step#SGD.step
    """)
    assert steps(trace) == [(0, 0, 20, "optimizer"), (1, 20, 45, "optimizer")]


@pytest.mark.parametrize(
    ("operators", "kept"),
    [
        ((3, 10, 10), [1, 2]),  # the recording began within the first step
        ((3, 10), [1]),
        ((10, 10, 10), [0, 1, 2]),
        ((9, 10, 10), [0, 1, 2]),  # such as no gradients to zero
        ((14, 10, 10), [0, 1, 2]),  # the first step may do more
        ((6, 12, 7, 9), [0, 1, 2, 3]),  # sequences of different lengths
    ],
)
def test_a_step_whose_begin_was_not_recorded_is_left_out(operators: tuple[int, ...], kept: list[int]) -> None:
    lines, at = [], 0
    for count in operators:
        lines += [f"main | {at + 10 * n} {at + 10 * n + 8} | aten::mm" for n in range(count)]
        at += 10 * count + 10
        lines.append(f"main | {at - 10} {at} | Optimizer.step#SGD.step")
    assert [step[0] for step in steps(stepped("\n".join(lines)))] == kept


def test_optimizers_that_hooks_call_within_backward_end_no_step() -> None:
    """`apply_optimizer_in_backward`: one update per parameter, on autograd's thread."""
    lines = []
    for step in range(4):
        begin = 1000 * step
        lines += [
            f"main | {at} {at + 8} | aten::{name}"
            for at, name in zip(
                range(begin, begin + 90, 10),
                ("mm", "add", "relu", "mm", "add", "relu", "mm", "sum", "mul"),
                strict=True,
            )
        ]
        for at in range(begin + 100, begin + 400, 100):
            lines.append(f"autograd | {at} {at + 90} | autograd::engine::evaluate_function: AccumulateGrad")
            lines.append(f"autograd | {at + 10} {at + 80} | Optimizer.step#SGD.step")
            lines.append(f"autograd | {at + 20} {at + 70} | aten::add_")
    assert [row[1] for row in steps(stepped("\n".join(lines)))] == [0, 1000, 2000]


def test_steps_that_a_file_does_not_hold_to_their_end_are_left_out() -> None:
    text = """
        main |   0 100 | ProfilerStep#5
        main | 100 200 | ProfilerStep#6
        main | 200 300 | ProfilerStep#7
        main |  10  90 | aten::mm
        main | 110 190 | aten::mm
        main | 210 250 | aten::mm
    """
    cut = drawn_trace(text).with_warnings([("truncated_event", "the file ends inside an event", 1)])
    assert [step[0] for step in steps(find_steps(link_launches(cut)))] == [5, 6]
    partial = "main | 0 8 | aten::mm\nmain | 10 20 | Optimizer.step#SGD.step\nstream 7 | 50 60 | k\n"
    partial += "\n".join(f"main | {at} {at + 8} | aten::mm" for at in range(30, 120, 10))
    partial += "\nmain | 130 400 | Optimizer.step#SGD.step\nmain | 200 210 | aten::add_"
    first_and_last = drawn_trace(partial).with_warnings([("truncated_file", "the file ends", 1)])
    assert [step[1:3] for step in steps(find_steps(link_launches(first_and_last)))] == [(20, 400)]
    one = drawn_trace(text.split("\n")[1] + "\nmain | 10 90 | aten::mm")
    one = one.with_warnings([("truncated_file", "the file ends before its array of events does", 1)])
    assert set(warning_codes(find_steps(link_launches(one)))) == {"truncated_file", "work_missing"}


def test_with_several_optimizers_the_rarest_ends_the_step() -> None:
    trace = stepped("""
        main |  0  5 | Optimizer.step#RMSprop.step
        main | 10 15 | Optimizer.step#RMSprop.step
        main | 20 25 | Optimizer.step#Adam.step
        main | 30 35 | Optimizer.step#RMSprop.step
        main | 40 45 | Optimizer.step#RMSprop.step
        main | 50 55 | Optimizer.step#Adam.step
    """)
    assert steps(trace) == [(0, 0, 25, "optimizer"), (1, 25, 55, "optimizer")]


def test_of_optimizers_that_step_equally_often_the_last_ends_the_step() -> None:
    trace = stepped("""
        main |  0  5 | Optimizer.step#A.step
        main | 10 15 | Optimizer.step#B.step
        main | 20 25 | Optimizer.step#A.step
        main | 30 35 | Optimizer.step#B.step
    """)
    assert steps(trace) == [(0, 0, 15, "optimizer"), (1, 15, 35, "optimizer")]


@pytest.mark.parametrize(
    ("updates", "ends"),
    [
        ("{} {} | Lookahead, {} {} | Adam", [90, 190, 290]),  # one inside of the other
        ("{} 60 | Adam, 65 90 | Adam", [90, 190, 290]),  # two of a class, after one backward pass
    ],
)
def test_updates_with_no_pass_between_them_are_of_one_step(updates: str, ends: list[int]) -> None:
    lines = []
    for at in (0, 100, 200):
        lines += [f"main | {at} {at + 10} | aten::mm | seq={at}"]
        lines += [f"main | {at + 20} {at + 30} | MmBackward0 | seq={at} fwd=1"]
        for update in updates.format(40, 90, 45, 60).split(", "):
            span, name = update.split(" | ")
            begin, end = (at + int(time) for time in span.split())
            lines.append(f"main | {begin} {end} | Optimizer.step#{name}.step")
    assert [step[2] for step in steps(stepped("\n".join(lines)))] == ends


@pytest.mark.parametrize(
    "name",
    [
        "## step {} ##",
        "train_iter/{}",
        "Iteration: {} (epoch 0)",
        "训练步 {}",
        "[rank0] work {}",
        "it{} lr=3e-4",
        "step {}: loss 1.25",
    ],
)
def test_ranges_that_hold_one_update_each_are_the_steps_by_any_name(name: str) -> None:
    trace = stepped(f"""
        main |   0  98 | {name.format(7)} | cat=annotation
        main |  10  60 | aten::mm
        main |  70  80 | Optimizer.step#SGD.step
        main | 100 198 | {name.format(8)} | cat=annotation
        main | 110 160 | aten::mm
        main | 170 180 | Optimizer.step#SGD.step
    """)
    numbers = [step[0] for step in steps(trace)]
    assert [step[1:] for step in steps(trace)] == [(0, 100, "range"), (100, 198, "range")]
    assert numbers in ([7, 8], [0, 1])


def test_a_range_that_is_the_step_is_in_no_stage() -> None:
    """The stages are those of a step that the profiler marks."""
    loop = """
        main     |   0  98 | {0}              | cat=annotation
        main     |  10  40 | aten::linear     | seq=1
        main     |  20  22 | cudaLaunchKernel | corr=1
        autograd |  45  75 | AddmmBackward0   | seq=1 fwd=1
        autograd |  50  52 | cudaLaunchKernel | corr=2
        main     |  80  90 | Optimizer.step#SGD.step
        main     |  82  84 | cudaLaunchKernel | corr=3
        main     | 100 198 | {1}              | cat=annotation
        main     | 180 190 | Optimizer.step#SGD.step
        stream 7 |  25  40 | gemm             | corr=1
        stream 7 |  55  70 | gemm             | corr=2
        stream 7 |  85  90 | add              | corr=3
    """
    marked, ranged = (
        annotate(drawn_trace(loop.format(*names)))
        for names in (("ProfilerStep#0", "ProfilerStep#1"), ("work 0", "work 1"))
    )
    assert set(ranged["steps"].text("evidence")) == {"range"}
    columns = ("step", "stage", "start_ns", "end_ns")
    assert us(ranged, "stages", *columns) == us(marked, "stages", *columns)


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        ([(0, 48), (50, 98), (100, 148), (150, 198)], "two micro-batches for an update"),
        ([(0, 198)], "a range around the loop"),
        ([(65, 85), (165, 185)], "a short range around the update"),
    ],
)
def test_other_ranges_do_not_change_that_a_step_ends_with_the_optimizer(ranges, why) -> None:
    lines = [f"main | {start} {end} | work {n} | cat=annotation" for n, (start, end) in enumerate(ranges)]
    updates = [f"main | {at} {at + 10} | Optimizer.step#SGD.step" for at in (70, 170)]
    assert {step[3] for step in steps(stepped("\n".join(lines + updates)))} == {"optimizer"}, why


def test_the_last_repeat_of_a_pattern_counts_only_with_the_pause_after_it() -> None:
    """A loop that loads data for 60 us before each step of 40 us, with nothing to mark either."""
    lines = [
        f"main | {begin + at} {begin + at + 18} | {name}"
        for begin in (0, 100, 200, 300)
        for at, name in ((0, "aten::linear"), (20, "aten::relu"))
    ]
    trace = find_steps(drawn_trace("\n".join(lines)))
    assert steps(trace) == [(0, 0, 100, "pattern"), (1, 100, 200, "pattern"), (2, 200, 300, "pattern")]


def test_otherwise_steps_are_the_repeats_of_a_pattern() -> None:
    one = ["aten::embedding", "aten::mm", "aten::mm", "aten::softmax"]
    lines = "\n".join(f"main | {10 * i} {10 * i + 8} | {name}" for i, name in enumerate(one * 3))
    trace = stepped(lines)
    assert steps(trace) == [(0, 0, 40, "pattern"), (1, 40, 80, "pattern"), (2, 80, 118, "pattern")]
    assert warning_codes(trace) == {"steps_inferred": 1}


@pytest.mark.parametrize(
    "name", ["step {}: loss {}.25", "global_step={}, loss: {}e-3, lr 1e-4", "model_inference"]
)
def test_ranges_with_metrics_and_ranges_of_one_name_are_steps(name: str) -> None:
    lines = [f"main | {at} {at + 98} | {name.format(at // 100, at)} | cat=annotation" for at in (0, 100, 200)]
    lines += [f"main | {at} {at + 30} | aten::mm" for at in (10, 110, 210)]
    trace = annotate(drawn_trace("\n".join(lines)))
    assert [step[:3] for step in steps(trace)] == [(0, 0, 100), (1, 100, 200), (2, 200, 298)]
    stages = {stage for stage in trace.events.text("stage") if stage}
    assert stages == {"forward"}


def test_one_operator_again_and_again_is_no_step() -> None:
    trace = stepped("\n".join(f"main | {10 * i} {10 * i + 8} | aten::mm" for i in range(20)))
    assert steps(trace) == [(0, 0, 198, "whole_trace")]


@pytest.mark.parametrize(("marked", "whole"), [(20, True), (200, False)])
def test_steps_that_hold_little_of_the_work_do_not_stand_for_the_trace(marked, whole) -> None:
    lines = [f"main | 0 {marked} | ProfilerStep#3"]
    for number in range(30):
        at = 10 * number
        lines += [
            f"main | {at} {at + 8} | aten::mm",
            f"main | {at + 2} {at + 4} | cudaLaunchKernel | corr={number}",
            f"stream 7 | {at + 5} {at + 14} | sgemm | corr={number}",
        ]
    trace = stepped("\n".join(lines))
    expected = (0, 0, 298, "whole_trace") if whole else (3, 0, 200, "profiler_step")
    assert steps(trace) == [expected]
    assert warning_codes(trace) == ({"steps_cover_little": 1} if whole else {})
    drawn = link_launches(drawn_trace("\n".join(lines)))
    for known in ({"properties": {CHOSEN: "ProfilerStep"}}, {"capture": {"outcome": "done"}}):
        assert steps(find_steps(drawn.with_metadata(**known)))[0][:3] == (3, 0, marked)
    note = coverage_note(annotate(drawn_trace("\n".join(lines))), 0)
    assert note.startswith("the step found takes 0.02 ms and holds 7% of the trace's work") == whole
    assert bool(note) == whole


@pytest.mark.parametrize("update", ["", "Optimizer.step#SGD.step"])
@pytest.mark.parametrize(
    ("step", "aside"),
    [
        ("train_step {}", "evaluate"),
        ("train_step {}", "stepscope.evaluation: validate (train.py:9)"),
        ("train_step {}", "save checkpoint"),
        ("train#step_num={}", "eval#step_num={}"),
    ],
)
def test_marked_evaluations_are_apart_from_the_steps_however_long(step: str, aside: str, update: str) -> None:
    lines = []
    ranges = [(0, step, 0), (20, step, 1), (40, aside, 0), (400, aside, 1), (800, step, 2), (820, step, 3)]
    for at, name, number in ranges:
        length = 20 if name == step else 350
        lines += [
            f"main | {at} {at + length - 1} | {name.format(number)} | cat=annotation",
            f"main | {at + 1} {at + length - 5} | aten::mm",
            f"main | {at + 2} {at + 3} | cudaLaunchKernel | corr={at}",
            f"stream 7 | {at + 4} {at + length - 4} | sgemm | corr={at}",
        ]
        if name == step and update:
            lines.append(f"main | {at + length - 4} {at + length - 2} | {update}")
    trace = stepped("\n".join(lines))
    assert [row[:2] for row in steps(trace)] == [(0, 0), (1, 20), (2, 800), (3, 820)]
    assert warning_codes(trace) == {}


def test_otherwise_all_is_one_step_and_said_so() -> None:
    trace = stepped("""
        main | 5 10 | aten::mm
        main | 10 20 | aten::add
    """)
    assert steps(trace) == [(0, 0, 15, "whole_trace")]
    assert warning_codes(trace) == {"steps_inferred": 1}


def test_steps_are_those_of_the_training_loops_thread() -> None:
    trace = stepped("""
        main   | 0 100 | ProfilerStep#1
        worker | 0 400 | aten::stack
    """)
    assert steps(trace) == [(1, 0, 100, "profiler_step")]


def test_a_thread_that_only_counts_the_steps_of_another_does_not_train() -> None:
    trace = annotate(
        drawn_trace("""
        counts   |   0 100 | ProfilerStep#4
        counts   | 100 200 | ProfilerStep#5
        main     |   5  20 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     |  20  30 | aten::mm       | seq=1
        autograd |  30  60 | MmBackward0    | seq=1 fwd=1
        main     |  60  90 | Optimizer.step#SGD.step
        main     | 105 120 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     | 120 130 | aten::mm       | seq=2
        autograd | 130 160 | MmBackward0    | seq=2 fwd=1
        main     | 160 190 | Optimizer.step#SGD.step
        """)
    )
    assert steps(trace) == [(4, 0, 100, "profiler_step"), (5, 100, 200, "profiler_step")]
    stages = set(trace["stages"].text("stage"))
    assert stages == {"other", "data_loading", "forward", "backward", "optimizer"}


def test_a_thread_of_autograd_alone_is_not_that_of_the_loop() -> None:
    trace = stepped("""
        main     | 0 100 | ProfilerStep#4
        autograd | 5  60 | autograd::engine::evaluate_function: MmBackward0
        autograd | 9  50 | aten::mm
    """)
    assert trace["tracks"].text("name")[main_track(trace)] == "main"


def test_the_loop_is_on_the_thread_that_updates_also_if_autograds_does_more() -> None:
    trace = stepped("""
        main     |   0  10 | aten::mm
        autograd |  10 190 | MmBackward0
        main     | 190 200 | Optimizer.step#SGD.step
        main     | 200 210 | aten::mm
        autograd | 210 390 | MmBackward0
        main     | 390 400 | Optimizer.step#SGD.step
    """)
    assert steps(trace) == [(0, 0, 200, "optimizer"), (1, 200, 400, "optimizer")]


def test_a_trace_without_steps_is_refused_with_the_reason() -> None:
    capture = {"outcome": "no_steps", "message": "the run ended; no optimizer stepped"}
    empty = Trace({}, Metadata(source="a.stepscope", capture=capture))
    with pytest.raises(TraceError, match="found none: the run ended; no optimizer stepped"):
        require_steps(empty)
    contexts = empty.with_table(Table(CONTEXTS, {"parent": [-1], "kind": ["root"]}))
    with pytest.raises(TraceError, match="see `stepscope contexts a"):
        require_steps(contexts)
    with pytest.raises(TraceError, match="contexts of a whole run; look at the page"):
        require_steps(contexts, "look at the page")
    require_steps(annotate(drawn_trace("main | 0 5 | ProfilerStep#1")))


def test_ranges_with_numbers_that_no_table_holds_are_counted() -> None:
    lines = [f"main | {at} {at + 90} | request {12345678901 + at} | cat=annotation" for at in (0, 100, 200)]
    trace = drawn_trace("\n".join(lines), properties={"chosen_range": "request"})
    assert [step[0] for step in steps(find_steps(link_launches(trace)))] == [0, 1, 2]


def test_a_number_that_no_step_has_marks_none() -> None:
    trace = stepped(f"main | 0 98 | ProfilerStep#{'9' * 5000}\nmain | 10 20 | aten::mm")
    assert steps(trace) == [(0, 0, 98, "whole_trace")]


@given(
    st.lists(st.integers(0, 30), max_size=12).map(sorted),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=5).map(sorted),
)
def test_an_event_is_in_the_last_step_that_began_unless_it_has_ended(
    events: list[int], steps: list[tuple[int, int]]
) -> None:
    found = running_span(
        np.array([start for start, _ in steps], np.int64),
        np.array([start + length for start, length in steps], np.int64),
        np.array(events, np.int64),
    )
    for event, step in zip(events, found.tolist(), strict=True):
        begun = [number for number, (start, _) in enumerate(steps) if start <= event]
        runs = bool(begun) and event < sum(steps[begun[-1]])
        assert step == (begun[-1] if runs else -1)
