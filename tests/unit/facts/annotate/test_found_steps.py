"""How steps are found, rule by rule: marks, patterns, ranges, and which thread is that of the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facts import warning_codes

from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps import ranges, steps
from stepscope.facts.annotate.steps.main_track import main_track, updates
from stepscope.facts.annotate.steps.ranges import (
    beside_training,
    chosen_ranges,
    cut_to_ranges,
    is_of_other_loop,
    longest_ranges,
    ranges_of_updates,
    step_ranges,
    steps_of_ranges,
)
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.testing import drawn_trace
from stepscope.trace.row_order import last_begun, running_span
from stepscope.trace.schema import ITERATIONS, STEPS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def named(trace: Trace, rows: Any) -> list[str | None]:
    return [trace.events.text("name")[int(row)] for row in rows]


@pytest.mark.parametrize(
    ("numbers", "ascending"), [([7, 8, 10], [7, 8, 10]), ([2, 2, 1], [2, 3, 4]), ([5, 4], [5, 6]), ([3], [3])]
)
def test_numbers_that_repeat_are_counted_from_the_first(numbers: list[int], ascending: list[int]) -> None:
    assert steps._ascending(np.array(numbers)).tolist() == ascending


@pytest.mark.parametrize(
    ("lengths", "unlike", "like"),
    [
        *(([10, 10, last], 0.5, last in (6, 10, 14)) for last in (5, 6, 10, 14, 15)),
        ([10, 10, 11], 0.1, False),
        ([100, 100, 109], 0.1, True),
        *(([10], 0.5, False), ([], 0.5, False)),
        ([2, 10, 10, 12], 0.5, True),  # the median of those before it
    ],
)
def test_the_last_of_a_sequence_is_like_the_others(lengths: list[int], unlike: float, like: bool) -> None:
    assert steps._last_is_like(np.array(lengths), unlike) is like


@pytest.mark.parametrize(
    ("letters", "period"),
    [
        ("abcd" * 2, 4),
        ("abc" * 2, None),  # fewer than eight events
        ("ab" * 4, 2),
        ("a" * 20, None),  # a benchmark
        ("aab" * 3, 3),
        ("abcdefgh", None),
        ("abcd" * 10 + "abxd" + "abcd" * 10, 4),  # nearly all repeats
        ("abcd" * 3 + "xyzw" + "abcd", None),
        ("abcab" * 3, 5),
        ("abcdefgabcdefg", 7),
        ("abcdefgabcdef", None),  # not twice
    ],
)
def test_a_pattern_repeats_nearly_everywhere(letters: str, period: int | None) -> None:
    assert steps._period(np.array([ord(letter) for letter in letters])) == period


def test_events_belong_to_the_step_in_which_they_begin() -> None:
    starts, ends = np.array([10, 20, 40]), np.array([20, 30, 50])
    begin = np.array([0, 9, 10, 19, 20, 29, 30, 39, 40, 49, 50, 99])
    assert running_span(starts, ends, begin).tolist() == [-1, -1, 0, 0, 1, 1, -1, -1, 2, 2, -1, -1]
    assert last_begun(starts, begin).tolist() == [-1, -1, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("before", "windows"), [(-1, [(0, 50), (50, 90)]), (20, [(20, 50), (50, 90)]), (50, [(0, 50), (50, 90)])]
)
def test_the_first_window_begins_when_earlier_work_ends(before: int, windows: list[tuple[int, int]]) -> None:
    table = Table(STEPS, {"start_ns": [0, 50], "end_ns": [50, 90], "device_end_ns": [-1, -1]})
    found = steps._windows(table, before, np.ones(2, np.bool_))
    columns = found["window_start_ns"].tolist(), found["window_end_ns"].tolist()
    assert list(zip(*columns, strict=True)) == windows
    assert len(steps._windows(table.take([]), before, np.ones(0, np.bool_))) == 0


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([(0, 10), (10, 20)], [0, 1]),
        ([(0, 10), (9, 19), (20, 30)], [0, 1, 2]),  # a tenth: what a clock is wrong
        ([(0, 10), (8, 18), (20, 30)], [0, 2]),
        ([(0, 100), (50, 150), (100, 200), (150, 250)], [0, 2]),  # two profilers
    ],
)
def test_marks_of_a_second_profiler_begin_within_steps_of_the_first(
    spans: list[tuple[int, int]], kept: list[int]
) -> None:
    lines = [f"t{row} | {start} {end} | ProfilerStep#{row}" for row, (start, end) in enumerate(spans)]
    trace = drawn_trace("\n".join(lines))
    assert steps._of_one_profiler(trace, np.arange(len(spans))).tolist() == kept


def cut_off(spans: list[tuple[int, int, int]], evidence: str = "profiler_step") -> list[bool]:
    """Which of some ranges are cut off; each with its number of operators."""
    lines = [
        f"main | {start + (end - start) * row // (count + 1)}.5 {end} | op{row}"
        for start, end, count in spans
        for row in range(count)
    ]
    trace = drawn_trace("\n".join(["main | 0 0 | begin | cat=annotation", *lines]))
    starts, ends = (np.array([span[side] * 1000 for span in spans]) for side in (0, 1))
    return steps._cut_off(trace, starts, ends, evidence).tolist()


@pytest.mark.parametrize(
    ("spans", "evidence", "cut"),
    [
        ([(0, 100, 8), (100, 200, 8), (200, 201, 1)], "profiler_step", [False, False, True]),
        ([(0, 100, 8), (100, 200, 8), (200, 202, 1)], "profiler_step", [False, False, False]),
        ([(0, 100, 8), (100, 101, 1), (101, 200, 8)], "profiler_step", [False, False, False]),
        ([(0, 100, 8), (100, 101, 1), (300, 400, 8)], "profiler_step", [False, True, False]),
        ([(0, 100, 8), (100, 200, 0), (200, 300, 8)], "profiler_step", [False, True, False]),
        ([(0, 100, 7), (100, 200, 0), (200, 300, 7)], "profiler_step", [False, False, False]),
        ([(0, 100, 0), (100, 200, 0)], "profiler_step", [False, False]),
        ([(0, 100, 4), (100, 200, 8), (200, 300, 9)], "optimizer", [True, False, False]),
        ([(0, 100, 7), (100, 200, 8), (200, 300, 9)], "optimizer", [False, False, False]),
        ([(0, 100, 6), (100, 200, 8), (200, 300, 9)], "optimizer", [True, False, False]),
        ([(0, 100, 8), (100, 200, 9), (200, 300, 9)], "optimizer", [True, False, False]),
        ([(0, 100, 4), (100, 200, 8), (200, 300, 9)], "range", [False, False, False]),
        ([(0, 100, 4)], "optimizer", [False]),
    ],
)
def test_a_range_without_records_or_length_is_cut_off(
    spans: list[tuple[int, int, int]], evidence: str, cut: list[bool]
) -> None:
    """Of optimizer steps the first is, if it has fewer records than the others by more than they vary."""
    assert cut_off(spans, evidence) == cut


def test_a_short_range_that_called_a_program_is_not_cut_off() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |   0 100 | aten::a
        main     | 200 201 | cudaLaunchKernel | corr=1
        stream 7 | 300 400 | k | corr=1
    """)
    )
    starts, ends = np.array([0, 100_000, 200_000]), np.array([100_000, 200_000, 201_000])
    assert steps._cut_off(trace, starts, ends, "range").tolist() == [False, False, False]
    assert steps._cut_off(trace, starts, np.array([100_000, 200_000, 200_000]), "range").tolist()[2]


# -- ranges


@pytest.mark.parametrize(
    ("is_one", "names"),
    [
        (
            True,
            "step|train step 3|Epoch[1/10] Step[3/100]|step 3: loss 1.2|[x]run_batch|iter_5|global_step=7",
        ),
        (True, "batch|mini_batch 3|training iteration|it 3/90|fwd_bwd_step|forward_backward step|trainStep"),
        (True, "step 5 loss=2.31 lr: 3e-04 tokens 4096"),
        (False, "eval_step 3|load batch 3|step 3 forward|stepping|optimizer step|train|epoch 3|42|data step"),
        (
            False,
            "next batch|zero_grad step|step 3 sync|forward step|micro step|batch loss|validation iteration",
        ),
    ],
)
def test_names_end_in_the_word_of_a_step(is_one: bool, names: str) -> None:
    found = {name: ranges._is_step_name(name) for name in names.split("|")}
    assert found == dict.fromkeys(found, is_one)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("step 7", 7), ("epoch 2 step 5 of 90", 5), ("Epoch[1/10] Step[3/100]", 3), ("iteration_12", 12)),
        *(("epoch 4", 4), ("a1 b2", 2), ("train", -1), ("batch: 8", 8), ("step" + "9" * 30, 999999999)),
        ("x" + "1" * 30, 111111111111111111),
    ],
)
def test_the_number_of_a_step_follows_its_word(name: str, number: int) -> None:
    assert ranges._step_number(name) == number


def test_words_of_other_loops_are_known() -> None:
    others = ["eval", "Validation", "test_epoch", "load data", "lr_scheduler", "myValStep", "checkpoint"]
    assert [name for name in others if not is_of_other_loop(name)] == []
    assert [name for name in ("train", "step 3", "evaluator", "ProfilerStep") if is_of_other_loop(name)] == []


def loop(*spans: tuple[float, float, str], track: str = "main") -> list[str]:
    return [f"{track} | {start} {end} | {name} | cat=annotation" for start, end, name in spans]


@pytest.mark.parametrize(
    ("spans", "is_part", "found"),
    [
        ([(0, 90, "step 3"), (100, 190, "step 4")], False, [(3, 0, 100), (4, 100, 190)]),
        ([(0, 90, "step 3"), (100, 190, "step 3")], False, [(0, 0, 100), (1, 100, 190)]),
        ([(0, 90, "a"), (100, 190, "b")], False, [(0, 0, 100), (1, 100, 190)]),
        ([(0, 90, "x 0"), (100, 190, "x 2147483647")], False, [(0, 0, 100), (2**31 - 1, 100, 190)]),
        ([(0, 90, "x 5"), (100, 190, "x 2147483648")], False, [(0, 0, 100), (1, 100, 190)]),
        ([(0, 90, "step 3")], False, [(3, 0, 90)]),
        # A pause of more than three usual ones ends a step, unless it is no longer than the range.
        (
            [(0, 90, ""), (100, 190, ""), (200, 290, ""), (400, 490, "")],
            False,
            [(0, 0, 100), (1, 100, 200), (2, 200, 290), (3, 400, 490)],
        ),
        (
            [(0, 90, ""), (100, 190, ""), (200, 290, ""), (380, 470, "")],
            False,
            [(0, 0, 100), (1, 100, 200), (2, 200, 380), (3, 380, 470)],
        ),
        # Where the loop does much between its ranges, nothing shows when the last step ends.
        ([(0, 50, ""), (100, 150, ""), (200, 250, "")], False, [(0, 0, 100), (1, 100, 200)]),
        ([(0, 50, ""), (100, 150, "")], False, [(0, 0, 100), (1, 100, 150)]),
        ([(0, 50, ""), (100, 150, ""), (200, 250, "")], True, [(0, 0, 50), (1, 100, 150), (2, 200, 250)]),
        ([(0, 90, ""), (100, 190, ""), (200, 290, "")], True, [(0, 0, 100), (1, 100, 200), (2, 200, 290)]),
    ],
)
def test_a_step_lasts_until_the_next_unless_the_loop_pauses(
    spans: list[tuple[int, int, str]], is_part: bool, found: list[tuple[int, int, int]]
) -> None:
    trace = drawn_trace("\n".join(loop(*((a, b, name or "range") for a, b, name in spans))))
    columns = steps_of_ranges(trace, np.arange(len(spans)), is_part)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert [(number, start // 1000, end // 1000) for number, start, end in rows] == found


def test_the_loop_whose_ranges_take_most_time_has_the_steps() -> None:
    lines = [
        *loop(*((100 * n, 100 * n + 90, f"train step {n}") for n in range(4))),
        *loop(*((100 * n, 100 * n + 95, f"other step {n}") for n in range(3)), track="worker"),
        *loop(*((100 * n + 5, 100 * n + 80, f"step {n} forward") for n in range(4))),
        "stream 7 | 0 900 | train step 9 | cat=annotation",
    ]
    trace = drawn_trace("\n".join(lines))
    assert named(trace, step_ranges(trace)) == [f"train step {n}" for n in range(4)]
    alike = [line.replace("other", "train") for line in lines]  # on two threads
    assert len(step_ranges(drawn_trace("\n".join(alike)))) == 4
    assert len(step_ranges(drawn_trace(lines[0]))) == 0  # one is no loop
    sparse = drawn_trace("\n".join(loop((0, 49, "step 1"), (100, 149, "step 2"))))
    assert len(step_ranges(sparse)) == 2
    sparser = drawn_trace("\n".join(loop((0, 40, "step 1"), (100, 140, "step 2"))))
    assert len(step_ranges(sparser)) == 2  # just more than half of the time
    between = loop((45, 95, "evaluate"))
    aside = drawn_trace("\n".join(loop((0, 30, "step 1"), (100, 130, "step 2")) + between))
    assert len(step_ranges(aside)) == 2  # evaluations are no time of the loop
    assert len(step_ranges(drawn_trace("\n".join(loop((0, 30, "step 1"), (100, 130, "step 2")))))) == 0


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("", []),
        ("train 1", ["train 1"]),
        ("train 7", ["train 1", "train 2", "train 3"]),  # other numbers
        ("train", ["train 1", "train 2", "train 3"]),
        ("tra", []),
        ("sync", ["sync"]),
        ("kernel", []),
    ],
)
def test_chosen_ranges_have_the_name_or_its_words(chosen: str, found: list[str]) -> None:
    lines = loop(*((100 * n, 100 * n + 50, f"train {n}") for n in (1, 2, 3)), (510, 520, "sync"))
    lines.append("stream 7 | 0 900 | kernel | cat=annotation")
    trace = drawn_trace("\n".join(lines)).with_metadata(properties={ranges.CHOSEN: chosen})
    assert named(trace, chosen_ranges(trace)) == found


def test_steps_are_cut_to_ranges_that_hold_several() -> None:
    trace = drawn_trace("\n".join(loop((0, 95, "part"), (100, 105, "part"), (200, 310, "part"))))
    numbers, starts = np.arange(6), np.array([0, 50, 99, 190, 240, 290]) * 1000
    ends = np.append(starts[1:], 330_000)
    found = cut_to_ranges(trace, np.arange(3), numbers, starts, ends)
    rows = list(zip(*(column.tolist() for column in found), strict=True))
    assert rows == [*((0, 0, 50_000), (1, 50_000, 95_000)), *((3, 200_000, 240_000), (4, 240_000, 290_000))]


def test_the_longest_ranges_are_named_first_without_their_numbers() -> None:
    lines = loop((0, 10, "step 1"), (10, 30, "step 2"), (30, 55, "save"), (60, 61, "x"), (70, 70, "nothing"))
    lines += [f"main | {100 + n} {100.5 + n} | {'abcdef'[n]} | cat=annotation" for n in range(6)]
    trace = drawn_trace("\n".join([*lines, "stream 7 | 0 900 | device | cat=annotation"]))
    found = longest_ranges(trace)
    assert (len(found), found[:3]) == (6, ["step 2", "save", "x"])
    assert "nothing" not in longest_ranges(drawn_trace("\n".join(lines[:5])))


def test_what_runs_in_an_evaluation_is_beside_training() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |   0 100 | train | cat=annotation
        main     |  10  40 | evaluate | cat=annotation
        main     |  12  14 | cudaLaunchKernel | corr=1
        main     |  50  60 | cudaLaunchKernel | corr=2
        main     | 110 150 | eval#step_num=3
        main     | 120 130 | aten::mm
        main     | 160 170 | train#step_num=3
        stream 7 |  20  30 | in | corr=1
        stream 7 |  60  70 | out | corr=2
        stream 7 |  80  90 | unknown
    """)
    )
    inside = beside_training(trace)
    begin = (trace.events["start_ns"] // 1000)[inside].tolist()
    assert begin == [10, 12, 20, 110, 120]
    assert not beside_training(drawn_trace("main | 0 9 | train | cat=annotation")).any()


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (loop(*((100 * n, 100 * n + 95, f"train {n}") for n in range(3))), 3),
        (loop(*((100 * n, 100 * n + 95, f"train {n}") for n in range(4))), 4),  # gradients overflowed once
        (loop(*((50 * n, 50 * n + 45, f"train {n}") for n in range(6))), 0),  # several for an update
        (loop((0, 295, "all")), 0),
        (loop((0, 95, "a"), (100, 195, "b"), (200, 295, "a")), 0),
        (loop(*((100 * n, 100 * n + 95, f"optim {n}") for n in range(3))), 0),
        (
            loop(*((100 * n, 100 * n + 95, f"train {n}") for n in range(3)))
            + loop(*((100 * n + 2, 100 * n + 90, f"inner {n}") for n in range(3))),
            3,
        ),
    ],
)
def test_ranges_that_hold_one_update_each_are_steps(lines: list[str], found: int) -> None:
    updates_of = [f"main | {100 * n + 30} {100 * n + 40} | Optimizer.step#SGD.step" for n in range(3)]
    trace = drawn_trace("\n".join([*lines, *updates_of]))
    rows = np.flatnonzero(trace.events.text("name").mask("Optimizer.step#SGD.step"))
    kept = named(trace, ranges_of_updates(trace, rows))
    assert len(kept) == found
    assert all((name or "").startswith("train") for name in kept)


# -- the thread of the loop


@pytest.mark.parametrize(
    ("text", "track"),
    [
        ("a | 0 9 | aten::x\nb | 0 90 | aten::y", "b"),  # the busiest
        ("a | 0 9 | ProfilerStep#1\na | 1 2 | aten::x\nb | 0 90 | aten::y", "a"),
        ("a | 0 9 | ProfilerStep#1\nb | 0 90 | aten::y", "b"),  # which only counts
        ("a | 0 9 | ProfilerStep#1\na | 1 2 | part | cat=annotation\nb | 0 90 | aten::y", "a"),
        ("a | 0 9 | ProfilerStep#1\nb | 0 90 | autograd::engine::evaluate_function: X", "a"),
        ("a | 0 9 | Optimizer.step#SGD.step\nb | 0 90 | aten::y", "a"),
        ("a | 0 9 | PjitFunction(f) | cat=runtime\nb | 0 90 | aten::y", "a"),
        ("a | 0 20 | autograd::engine::evaluate_function: X\nb | 0 9 | aten::y", "b"),
        ("a | 0 90 | a.py(3): wait\nb | 0 9 | aten::y", "b"),
        ("a | 0 90 | a.py(3): wait\nb | 0 9 | b.py(3): f", "a"),
        ("a | 0 90 | a.py(3): wait\nb | 0 9 | cudaLaunchKernel", "b"),
        ("a | 0 90 | x | cat=other\nb | 0 9 | y | cat=other", "a"),
        ("stream 7 | 0 9 | k\nstream 8 | 0 99 | k2", "stream 8"),
        ("stream 7 | 0 9 | ProfilerStep#1 | cat=annotation\nmain | 0 99 | aten::y", "stream 7"),
        ("a | 0 49 | step 1 | cat=annotation\na | 50 99 | step 2 | cat=annotation\nb | 0 999 | aten::y", "a"),
    ],
)
def test_the_thread_of_the_loop(text: str, track: str) -> None:
    trace = drawn_trace(text)
    assert trace["tracks"].text("name")[main_track(trace)] == track
    assert trace["tracks"].text("name")[main_track(trace, 0)] == track


def test_chosen_ranges_and_iterations_tell_the_thread() -> None:
    trace = drawn_trace("a | 0 9 | mine | cat=annotation\nb | 0 90 | aten::y\nc | 0 5 | z")
    assert main_track(trace.with_metadata(properties={ranges.CHOSEN: "mine"})) == 0
    assert main_track(trace.with_table(Table(ITERATIONS, {"track": [0, 2, 2]}))) == 2
    assert main_track(trace) == 1


def test_of_several_ranks_each_has_a_thread_of_the_loop() -> None:
    trace = drawn_trace(
        "a | 0 9 | aten::x\nb | 0 90 | aten::y\nc | 0 5 | z\nd | 0 3 | ProfilerStep#1\nd | 1 2 | w"
    )
    trace = trace.with_table(trace["tracks"].with_columns(rank=[0, 1, 0, 1]))
    assert [main_track(trace, rank) for rank in (0, 1)] == [0, 3]
    marked = drawn_trace("a | 0 9 | mine | cat=annotation\nb | 0 9 | mine | cat=annotation\nb | 9 99 | x")
    marked = marked.with_table(marked["tracks"].with_columns(rank=[0, 1]))
    marked = marked.with_metadata(properties={ranges.CHOSEN: "mine"})
    assert [main_track(marked, rank) for rank in (0, 1)] == [0, 1]


def test_updates_inside_of_autograd_are_no_updates_of_the_loop() -> None:
    trace = drawn_trace("""
        main     | 0  9 | Optimizer.step#SGD.step
        autograd | 0 90 | autograd::engine::evaluate_function: X
        autograd | 5 20 | Optimizer.step#SGD.step
    """)
    assert (trace.events["track"][updates(trace)]).tolist() == [0]


# -- what is said of it


@pytest.mark.parametrize(
    ("inside", "outside", "warned"), [(90, 10, False), (89, 11, True), (0, 0, False), (10, 0, False)]
)
def test_much_compiled_work_outside_of_steps_is_told(inside: int, outside: int, warned: bool) -> None:
    lines = [
        f"pool | 0 {inside} | a | scope=x",
        f"pool | 100 {100 + outside} | b | scope=x",
        "main | 0 500 | c",
    ]
    trace = drawn_trace("\n".join(lines))
    order = [trace.events.text("name")[row] == "b" for row in range(3)]
    found = steps._warn_work_outside(trace.with_events(step=np.where(order, -1, 0)))
    assert ("work_outside_steps" in warning_codes(found)) is warned


def test_devices_that_work_in_no_step_are_told() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0 1 | ProfilerStep#1
        stream 0 | 10 60 | a
        stream 1 | 10 59 | b
        stream 2 | 10 20 | c
    """)
    )
    trace = trace.with_table(trace["tracks"].with_columns(device=[-1, 0, 1, 2]))
    step = np.array([0 if name in ("a",) else -1 for name in trace.events.text("name")])
    (row,) = [
        row
        for row in steps._warn_device_outside(trace, step)["warnings"].rows()
        if row["code"] == "device_outside_steps"
    ]
    assert row["message"] == "0.049 ms of 0.109 ms of device work is in no step: the work of device 1"
    for none in (step * 0 - 1, step * 0):
        assert "device_outside_steps" not in warning_codes(steps._warn_device_outside(trace, none))


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ("pattern", "the file marks no steps; steps are repeats of a pattern of operators"),
        ("whole_trace", "the file marks no steps and has no pattern; the whole trace is one step"),
        (
            "compiled_call",
            "the file marks no steps; a step lasts from one call of the jitted training function",
        ),
        ("optimizer", "so it is"),
    ],
)
def test_how_steps_were_inferred_is_said(evidence: str, text: str) -> None:
    (row,) = steps._warn_inferred(drawn_trace("main | 0 9 | aten::mm"), evidence, "so it is")[
        "warnings"
    ].rows()
    assert (row["code"], row["message"].startswith(text)) == ("steps_inferred", True)
    assert "no event has the category" not in row["message"]
    other = steps._warn_inferred(drawn_trace("main | 0 9 | x | cat=other"), evidence, "so it is")
    assert "; no event has the category" in next(other["warnings"].rows())["message"]
    assert not len(steps._warn_inferred(drawn_trace("main | 0 9 | x"), "optimizer")["warnings"])


def test_only_the_first_of_very_many_steps_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_MOST_STEPS", 2)
    lines = [f"main | {10 * n} {10 * n + 10} | ProfilerStep#{n}" for n in range(4)]
    lines += [f"main | {10 * n + 1} {10 * n + 9} | aten::mm" for n in range(4)]
    trace = find_steps(link_launches(drawn_trace("\n".join(lines))))
    assert trace["steps"]["step"].tolist() == [0, 1]
    assert warning_codes(trace) == {"many_steps": 2}
    assert sorted({*trace.events["step"].tolist()}) == [-1, 0, 1]


@pytest.mark.parametrize(
    ("code", "kept"), [("truncated_file", [0]), ("truncated_event", [0]), ("other", [0, 1])]
)
def test_a_step_that_ends_after_the_last_event_of_a_file_is_cut_off(code: str, kept: list[int]) -> None:
    lines = [f"main | {100 * n} {100 * n + 100} | ProfilerStep#{n}" for n in range(2)]
    lines += [f"main | {100 * n + 10} {100 * n + 50} | aten::mm" for n in range(2)]
    trace = drawn_trace("\n".join([*lines, "main | 100 110 | aten::last"])).with_warnings([(code, "cut", 1)])
    assert find_steps(link_launches(trace))["steps"]["step"].tolist() == kept


def test_a_file_that_is_cut_off_within_its_only_step_lacks_work() -> None:
    trace = drawn_trace("main | 0 100 | ProfilerStep#0\nmain | 10 50 | aten::mm").with_warnings(
        [("truncated_file", "cut", 1)]
    )
    found = find_steps(link_launches(trace))
    assert found["steps"]["step"].tolist() == [0]
    assert warning_codes(found) == {"truncated_file": 1, "work_missing": 1}


# -- each kind of evidence


def found(way: Any, trace: Trace) -> tuple[list[tuple[int, int, int]], str] | None:
    """Number, start and end of each step in us, and the evidence."""
    steps_found = way(trace)
    if steps_found is None:
        return None
    columns = (steps_found.numbers, steps_found.starts // 1000, steps_found.ends // 1000)
    return list(zip(*(column.tolist() for column in columns), strict=True)), steps_found.evidence


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([(0, 90, "ProfilerStep#3"), (100, 190, "ProfilerStep#4")], [(3, 0, 100), (4, 100, 190)]),
        ([(0, 90, "ProfilerStep#3"), (100, 190, "ProfilerStep#5")], [(3, 0, 90), (5, 100, 190)]),
        (
            [(0, 90, "ProfilerStep#3"), (93, 98, "eval#step_num=0"), (100, 190, "ProfilerStep#4")],
            [(3, 0, 93), (4, 100, 190)],  # until another loop runs
        ),
        ([(0, 90, "eval#step_num=1"), (100, 190, "eval#step_num=2")], [(1, 0, 100), (2, 100, 190)]),
        ([(0, 90, "a"), (10, 20, "stepscope.step#1"), (30, 40, "ProfilerStep#8")], [(-1, 10, 20)]),
    ],
)
def test_marks_of_a_profiler_last_until_the_next(
    marks: list[tuple[int, int, str]], expected: list[tuple[int, int, int]]
) -> None:
    trace = drawn_trace("\n".join(loop(*marks)))
    assert found(steps._by_profiler, trace) == (expected, "profiler_step")
    assert steps._by_profiler(drawn_trace("main | 0 9 | aten::mm")) is None


def test_of_a_capture_the_recorded_steps_count() -> None:
    trace = drawn_trace("\n".join(loop(*((100 * n, 100 * n + 90, f"ProfilerStep#{n}") for n in range(3)))))
    kept = trace.with_metadata(capture={"steps_recorded": [1, 2]})
    assert found(steps._by_profiler, kept) == ([(1, 100, 200), (2, 200, 290)], "profiler_step")
    assert steps._by_profiler(trace.with_metadata(capture={"steps_recorded": [9]})) is None


@pytest.mark.parametrize(
    ("updates_of", "passes", "expected"),
    [
        ("aaa", True, [(0, 0, 50), (1, 50, 150), (2, 150, 250)]),
        ("aba", True, [(0, 0, 150)]),  # the one that steps least often
        ("ab", True, [(0, 0, 150)]),  # of two that step equally often the last
        ("aaa", False, [(0, 0, 50), (1, 50, 150), (2, 150, 250)]),
    ],
)
def test_a_step_ends_with_an_update(
    updates_of: str, passes: bool, expected: list[tuple[int, int, int]]
) -> None:
    lines = ["main | 0 1 | aten::first"]
    for n, name in enumerate(updates_of):
        if passes:
            lines.append(f"main | {100 * n + 10} {100 * n + 20} | MmBackward0 | seq={n} fwd=1")
        lines.append(f"main | {100 * n + 30} {100 * n + 50} | Optimizer.step#{name}.step")
    assert found(steps._by_optimizer, link_launches(drawn_trace("\n".join(lines)))) == (expected, "optimizer")
    assert steps._by_optimizer(drawn_trace("main | 0 9 | aten::mm")) is None


def test_updates_without_a_pass_between_them_are_one() -> None:
    trace = drawn_trace("""
        main | 0 1 | MmBackward0 | seq=1 fwd=1
        main | 2 3 | Optimizer.step#A.step
        main | 4 5 | Optimizer.step#B.step
        main | 6 7 | MmBackward0 | seq=2 fwd=1
        main | 8 9 | Optimizer.step#A.step
        other | 8 9 | Optimizer.step#A.step
    """)
    assert (trace.events["start_ns"][steps._updates(trace)] // 1000).tolist() == [4, 8]


def test_an_iteration_lasts_until_the_next() -> None:
    table = Table(ITERATIONS, {"start_ns": [1000, 5000, 9000], "end_ns": [2000, 6000, 11_000]})
    trace = drawn_trace("main | 0 9 | aten::mm").with_table(table)
    assert found(steps._by_iterations, trace) == ([(0, 1, 5), (1, 5, 9), (2, 9, 11)], "iteration")
    assert steps._by_iterations(drawn_trace("main | 0 9 | aten::mm")) is None


@pytest.mark.parametrize(
    ("row", "pause", "expected"),
    [
        ("abcd" * 3, 0, [(0, 0, 40), (1, 40, 80), (2, 80, 120)]),
        ("abcd" * 3, 60, [(0, 0, 100), (1, 100, 200)]),  # nothing shows how long the last one pauses
        ("abcd" * 2, 60, [(0, 0, 100), (1, 100, 140)]),
        ("abcd" * 2 + "ab", 0, [(0, 0, 40), (1, 40, 80)]),
        ("abcdefgh", 0, None),
    ],
)
def test_repeats_of_a_pattern_are_steps(
    row: str, pause: int, expected: list[tuple[int, int, int]] | None
) -> None:
    lines, now = [], 0
    for place, letter in enumerate(row):
        now += pause if place and place % 4 == 0 else 0
        lines.append(f"main | {now} {now + 10} | aten::{letter}")
        now += 10
    result = found(steps._by_pattern, link_launches(drawn_trace("\n".join(lines))))
    assert result == (expected and (expected, "pattern"))


def test_ranges_of_one_name_are_a_pattern() -> None:
    three = loop(*((100 * n, 100 * n + 90, "x") for n in range(3)))
    result = found(steps._by_pattern, link_launches(drawn_trace("\n".join(three))))
    assert result == ([(0, 0, 100), (1, 100, 200), (2, 200, 290)], "pattern")
    assert steps._by_pattern(link_launches(drawn_trace("\n".join(three[:2])))) is None


def test_the_whole_trace_is_one_step_of_the_loop_or_of_all_threads() -> None:
    trace = drawn_trace("main | 10 90 | aten::mm\nother | 0 5 | x\nother | 95 99 | y\nstream 7 | 0 200 | k")
    assert found(steps._whole, trace) == ([(0, 10, 90)], "whole_trace")
    assert found(lambda one: steps._whole(one, any_track=True), trace) == ([(0, 0, 99)], "whole_trace")


def test_events_of_a_name_are_those_of_the_loop_or_of_the_first_thread_that_has_some() -> None:
    trace = drawn_trace("main | 0 90 | aten::mm\nmain | 1 2 | x\na | 0 1 | x\na | 0 1 | y\nb | 0 1 | y")

    def tracks(name: str) -> list[int]:
        return trace.events["track"][steps._named(trace, lambda text: text == name)].tolist()

    assert (tracks("x"), tracks("y"), tracks("z")) == ([0], [1], [])


def test_work_belongs_to_the_step_of_its_launch() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |   0   1 | cudaLaunchKernel | corr=5
        main     | 100 101 | cudaLaunchKernel | corr=6
        stream 7 | 110 150 | a | corr=5
        stream 7 | 150 160 | b | corr=6
        stream 7 | 170 180 | lost | corr=9
        stream 7 | 250 260 | later | corr=9
        stream 7 | 105 109 | earlier | corr=1
        stream 7 | 110 160 | range | cat=annotation
    """)
    )
    called = np.full(len(trace.events), -1, np.int32)
    found_steps = steps._step_of_events(trace, called, np.array([0, 100_000]), np.array([100_000, 200_000]))
    names = trace.events.text("name")
    assert {
        names[row]: step for row, step in enumerate(found_steps.tolist()) if names[row] != "cudaLaunchKernel"
    } == {**{"a": 0, "b": 1, "lost": 1, "later": 1, "earlier": -1, "range": -1}}


def test_a_step_has_its_work_until_its_last_operation_ends() -> None:
    trace = drawn_trace("""
        main | 0 90   | call | cat=runtime
        main | 100 190 | call | cat=runtime
        pool | 10 150 | run | cat=runtime
        pool | 20 130 | dot
        pool | 210 220 | outside
    """)
    called, step = np.array([-1, 0, 0, -1, 0], np.int32), np.array([0, 0, 0, 1, -1])
    assert list(trace.events.text("name")) == ["call", "run", "dot", "call", "outside"]
    edges = np.array([3, 4]), np.array([0, 100_000]), np.array([100_000, 200_000])
    found = steps._with_steps(trace, called, step, edges, "range")
    assert found["steps"]["device_end_ns"].tolist() == [130_000, -1]
    assert found.events["step"].tolist() == [3, 3, 3, 4, -1]
    assert [found["steps"][name].tolist() for name in ("step", "start_ns", "end_ns", "rank")] == [
        *([3, 4], [0, 100_000], [100_000, 200_000], [0, 0])
    ]
    assert list(found["steps"].text("evidence")) == ["range"] * 2


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (290, [(0, 0, 100), (1, 100, 200), (2, 200, 290)]),  # the last is like the others
        (900, [(0, 0, 100), (1, 100, 200)]),  # with what came after the loop
    ],
)
def test_a_step_lasts_from_one_call_of_the_training_function_to_the_next(
    end: int, expected: list[tuple[int, int, int]]
) -> None:
    lines = [f"main | {100 * n} {100 * n + 10} | PjitFunction(f) | cat=runtime" for n in range(3)]
    lines += [f"main | {end - 10} {end} | aten::last", "other | 0 9999 | aten::long"]
    trace = link_launches(drawn_trace("\n".join(lines)))
    assert found(steps._by_calls, trace) == (expected, "compiled_call")


def test_the_last_step_ends_where_the_profiler_stops() -> None:
    lines = [f"main | {100 * n} {100 * n + 10} | PjitFunction(f) | cat=runtime" for n in range(3)]
    lines += ["main | 280 350 | jax/_src/profiler.py(213): stop_trace | cat=python"]
    trace = link_launches(drawn_trace("\n".join(lines)))
    assert found(steps._by_calls, trace)[0] == [(0, 0, 100), (1, 100, 200), (2, 200, 280)]
    assert found(steps._whole, trace)[0] == [(0, 0, 280)]
