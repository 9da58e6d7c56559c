"""What the table of steps says: which steps are typical, how long they are, how they are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps.step_table import (
    coverage_note,
    covered_share,
    mean_device_ms,
    messages,
    missing_steps,
    number_list,
    one_of_steps,
    ranks_with_steps,
    require_steps,
    steady_steps,
    step_lengths,
    step_marks,
    warn_little,
)
from stepscope.testing import drawn_trace
from stepscope.trace.schema import CONTEXTS, STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def steps(lengths: list[int], **columns: Any) -> Table:
    """Steps of these lengths, one after the other."""
    ends = np.cumsum(lengths)
    times = {"start_ns": ends - lengths, "end_ns": ends, "device_end_ns": [-1] * len(lengths)}
    return Table(STEPS, {"step": np.arange(len(lengths)), **times, **columns})


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ([100, 30, 30, 30], "-+++"),
        ([90, 30, 30, 30], "++++"),  # three medians
        ([91, 30, 30], "-++"),
        ([91, 30], "++"),  # too few to tell
        ([30, 30, 200], "+++"),
        ([200, 50, 40, 30, 30, 30], "---+++"),  # shorter and shorter
        ([200, 50, 40, 35, 30, 30], "---+++"),  # three are left
        ([200, 36, 30, 30, 30, 30], "-+++++"),  # a fifth longer than those after it
        ([200, 37, 30, 30, 30, 30], "--++++"),
        ([200, 50, 60, 30, 30, 30], "--++++"),
        ([200, 250, 30, 30, 30, 30], "-+++++"),
        ([200, 30, 30, 170, 30, 30], "++++++"),  # rollouts before every third step
        ([200, 30, 30, 140, 30, 30], "-+++++"),  # of another kind
        ([200, 190, 30, 30, 30, 30], "--++++"),  # no step apart from the first
    ],
)
def test_a_long_first_step_warms_up(lengths: list[int], kept: str) -> None:
    assert steady_steps(steps(lengths)).tolist() == [one == "+" for one in kept]


def test_iterations_and_other_ranks_have_no_warm_up_of_this_rank() -> None:
    lengths = [100, 30, 30, 30]
    assert steady_steps(steps(lengths, evidence=["iteration"] * 4)).all()
    both = steps([100, 30, 30, 30, 30, 30], rank=[0, 0, 0, 1, 1, 1])
    assert steady_steps(both).tolist() == [False, True, True, True, True, True]


def test_steps_that_fill_a_queue_take_what_they_delay_its_end() -> None:
    assert steady_steps(steps([50, 10, 10, 10], device_end_ns=[100, 200, 300, 400])).all()
    assert not steady_steps(steps([50, 10, 10, 10], device_end_ns=[100, 110, 120, 130]))[0]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([0, 1], "0, 1"),
        ([0, 1, 2], "0 to 2"),
        ([0, 1, 5, 6, 7, 9], "0, 1, 5 to 7, 9"),
        ([3, 5], "3, 5"),
    ],
)
def test_numbers_in_a_row_are_named_by_their_ends(numbers: list[int], text: str) -> None:
    assert number_list(numbers) == text


def of_two_ranks() -> Trace:
    """Rank 0 has windows of 10, 20 and 30 ns, rank 1 one of 5."""
    columns = {"window_start_ns": [0, 10, 30, 0], "window_end_ns": [10, 30, 60, 5], "rank": [0, 0, 0, 1]}
    table = Table(STEPS, {"step": [4, 5, 7, 4], **columns})
    return Trace({"steps": table}).with_metadata(ranks=(0, 1, 2), source="a.json")


@pytest.mark.parametrize(
    ("rank", "step", "text"),
    [
        (0, 7, "step 7 alone, which is 50% longer than the mean of 3 steps"),
        (0, 4, "step 4 alone, which is 50% shorter than the mean of 3 steps"),
        *((0, step, "") for step in (None, 6)),
        (1, 4, ""),
    ],
)
def test_one_step_of_several_is_compared_with_all(rank: int, step: int | None, text: str) -> None:
    assert one_of_steps(of_two_ranks(), rank, step) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((9, 4), "there is no rank 9; the trace has 0, 1"),
        ((0, None), "there is no rank 0; the trace has 0, 1"),
        ((0, 6), "rank 0 has no step 6; it has 4, 5, 7"),
        ((0, 6, 6), "rank 0 has no step 6; it has 4, 5, 7"),
        ((0, 5, 7), "rank 0 has no steps 5 to 7 in a row; it has 4, 5, 7"),
        ((1, 5), "rank 1 has no step 5; it has 4"),
    ],
)
def test_what_is_missing_is_told_with_what_there_is(arguments: tuple[Any, ...], text: str) -> None:
    assert missing_steps(of_two_ranks(), *arguments) == text


def test_lengths_are_those_of_windows() -> None:
    trace = of_two_ranks()
    assert step_lengths(trace["steps"]).tolist() == [10, 20, 30, 5]
    assert ranks_with_steps(trace) == (0, 1)
    assert ranks_with_steps(Trace({}).with_metadata(ranks=(3, 4))) == (3, 4)


def test_device_times_are_means_over_steps() -> None:
    table = of_two_ranks()["steps"]
    assert mean_device_ms(table) == (None, None)
    assert mean_device_ms(table.with_columns(device_busy_ns=[1_000_000, 0, 0, 0])) == (0.25, 0)
    assert mean_device_ms(table.with_columns(device_idle_ns=[0, 2_000_000, 0, 0])) == (0, 0.5)


def test_a_trace_without_steps_says_why() -> None:
    require_steps(of_two_ranks())
    empty = Trace({}).with_metadata(source="a.json")
    with pytest.raises(TraceError, match=r"^a.json: expected .*, found none: no event has a duration$"):
        require_steps(empty)
    noted = empty.with_warnings([("capture", "it ended early", 1), ("other", "not this", 1)])
    with pytest.raises(TraceError, match=r"none: killed; it ended early$"):
        require_steps(noted.with_metadata(capture={"message": "killed"}))
    contexts = empty.with_table(Table(CONTEXTS, {"name": ["root"], "parent": [-1]}))
    with pytest.raises(TraceError, match=r"contexts of a whole run; see `stepscope contexts a\.json`$"):
        require_steps(contexts)
    with pytest.raises(TraceError, match=r"contexts of a whole run; look there$"):
        require_steps(contexts, "look there")


def test_notes_are_those_of_a_rank() -> None:
    trace = of_two_ranks().with_warnings([("capture", "of 0", 1), ("steps_inferred", "guessed", 1)])
    trace = trace.with_table(trace["warnings"].with_columns(rank=[0, 1]))
    assert messages(trace, 0, "capture", "steps_inferred") == ["of 0"]
    assert messages(trace, None, "capture", "steps_inferred") == ["of 0", "guessed"]
    assert messages(Trace({}), None, "capture") == []
    assert coverage_note(trace, 1) == ""
    whole = trace["steps"].with_columns(evidence=["whole_trace"] * 4)
    assert coverage_note(trace.with_table(whole), 1) == "guessed"
    little = warn_little(trace, np.array([3_000_000]), 0.25)
    assert coverage_note(little, 0) == (
        "the step found takes 3 ms and holds 25% of the trace's work, so the whole trace is shown as one step"
    )
    many = warn_little(Trace({}), np.array([3_000_000, 4_000_000]), 0.5)
    assert messages(many, 0, "steps_cover_little")[0].startswith(
        "the 2 steps found take 7 ms and hold 50% of"
    )


@pytest.mark.parametrize(
    ("text", "step", "share"),
    [
        (
            """
            main     |  0  2 | cudaLaunchKernel | corr=1
            main     |  3  4 | cudaLaunchKernel | corr=2
            stream 7 | 10 20 | a | corr=1
            stream 7 | 20 50 | b | corr=2
            """,
            [0, -1, 0, -1],
            0.25,
        ),
        (
            "main | 0 10 | aten::mm\nmain | 10 40 | aten::add\nmain | 40 99 | train | cat=annotation",
            [0, -1, 0],
            0.25,
        ),
        ("pool | 0 10 | fusion | scope=jit(f)\nmain | 10 40 | aten::add", [-1, 0], 1.0),
        ("main | 0 10 | train | cat=annotation", [-1], 1.0),
    ],
)
def test_the_share_of_work_that_is_in_steps(text: str, step: list[int], share: float) -> None:
    assert covered_share(link_launches(drawn_trace(text)), np.array(step)) == share


def test_what_is_aside_of_training_counts_in_steps_only() -> None:
    trace = drawn_trace("main | 0 10 | a\nmain | 10 40 | b\nmain | 40 60 | c")
    for aside, share in (([0, 1, 0], 10 / 30), ([1, 1, 1], 1.0), ([0, 0, 0], 10 / 60)):
        assert covered_share(trace, np.array([0, -1, -1]), np.array(aside) > 0) == pytest.approx(share)


def test_marks_of_steps_are_the_profilers_and_ranges_that_are_steps() -> None:
    trace = drawn_trace("""
        main     |  0 50 | ProfilerStep#1
        main     | 60 90 | train | cat=annotation
        main     | 60 70 | inside | cat=annotation
        main     | 75 80 | later | cat=annotation
        stream 7 | 60 65 | on device | cat=annotation
        stream 7 | 70 75 | ProfilerStep#1 | cat=annotation
    """)
    for evidence, marks in (("range", 3), ("pattern", 3), ("optimizer", 2)):
        table = Table(STEPS, {"start_ns": [0, 60_000], "evidence": [evidence] * 2})
        found = step_marks(trace.with_table(table))
        assert int(found.sum()) == marks
        names = Text.of(trace.events.text("name")).take(found)
        assert {*names} == {"ProfilerStep#1", *(["train"] if marks == 3 else [])}
