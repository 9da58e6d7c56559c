"""The answer that lays the step on screen above another one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from serving import ask, opened

from stepscope.base.json_text import json_bytes
from stepscope.errors import ChangeError, ServeError
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def training(loading_us: int, steps: int = 1, communicates: bool = False) -> Trace:
    """Steps that load data, compute forward, and may reduce gradients."""
    lines = []
    for step in range(steps):
        at = 5000 + 1000 * step
        forward = at + loading_us
        lines.append(f"""
            main     | {at} {at + 900} | ProfilerStep#{step}
            main     | {at} {forward} | enumerate(DataLoader)
            main     | {forward} {forward + 200} | ## forward ##
            main     | {forward + 1} {forward + 50} | aten::mm
            main     | {forward + 10} {forward + 20} | cudaLaunchKernel | corr={9 * step + 1}
            main     | {forward + 30} {forward + 40} | cudaLaunchKernel | corr={9 * step + 2}
            stream 7 | {forward + 30} {forward + 130} | gemm | corr={9 * step + 1}
        """)
        if communicates:
            lines.append(
                f"comm 8 | {forward + 50} {forward + 250} | ncclDevKernel_AllReduce | corr={9 * step + 2}\n"
            )
    return annotate(drawn_trace("".join(lines)))


def pair(before: Trace, after: Trace, **query: Any) -> dict[str, Any]:
    return ask(TraceView(after, {"other": before}.__getitem__), "pair", against="other", **query)


def pieces(answer: dict[str, Any], side: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Start and duration of each rectangle by its row and name, µs."""
    columns = answer[side]
    rows = [answer["threads"][row]["name"] for row in columns["thread"]]
    keys = zip(rows, columns["name"], strict=True)
    times = zip(columns["start_us"], columns["duration_us"], strict=True)
    return dict(zip(keys, times, strict=True))


def partners(answer: dict[str, Any], side: str) -> dict[str, tuple[str | None, float]]:
    """The partner's name and the change, µs, of each rectangle by its name."""
    own, other = answer[side], answer["after" if side == "before" else "before"]
    named = (other["name"][at] if at >= 0 else None for at in own["partner"])
    return dict(zip(own["name"], zip(named, own["change_us"], strict=True), strict=True))


def test_both_steps_begin_at_zero_and_the_answer_says_when_the_shown_one_does() -> None:
    answer = pair(training(100), training(400))
    assert pieces(answer, "before")["work", "gemm"] == (130, 100)
    assert pieces(answer, "after")["work", "gemm"] == (430, 100)
    assert pieces(answer, "after")["stages", "data_loading"] == (0, 400)
    assert (answer["upper"], answer["start_ns"], answer["after"]["length_us"]) == ("after", 0, 900)
    assert json.loads(json_bytes(answer)) == json.loads(json.dumps(answer))


def test_steps_take_as_long_as_everywhere_though_their_work_ends_in_the_next() -> None:
    answer = pair(late_work(500), late_work(900), step=1000)
    assert (answer["before_us"], answer["after_us"]) == (1000, 1000)
    assert [answer[side]["length_us"] for side in ("before", "after")] == [1400, 1800]


def late_work(us: int) -> Trace:
    """Steps of 1,000 µs, each with a kernel that begins near its end."""
    steps = [
        f"""
        main     | {at} {at + 1000} | ProfilerStep#{at}
        main     | {at + 10} {at + 20} | cudaLaunchKernel | corr={at + 1}
        stream 7 | {at + 900} {at + 900 + us} | gemm | corr={at + 1}
        """
        for at in (0, 1000, 2000, 3000)
    ]
    return annotate(drawn_trace("".join(steps)))


def test_what_does_the_same_is_paired_with_how_much_longer_it_takes() -> None:
    found = partners(pair(training(100), training(400)), "after")
    assert found["data_loading"] == ("data_loading", 300)
    assert found["gemm"] == ("gemm", 0)
    assert found["aten::mm"] == ("aten::mm", 0)


def test_what_one_side_alone_has_has_no_partner() -> None:
    answer = pair(training(100), training(100, communicates=True))
    assert partners(answer, "after")["ncclDevKernel_AllReduce"] == (None, 0)
    assert [one["name"] for one in answer["threads"]][:4] == ["stages", "operators", "work", "communication"]


def test_the_step_is_the_one_asked_for_or_one_of_median_length() -> None:
    """Of steps of one length it is the first."""
    both = training(100), training(100, steps=3)
    assert pair(*both, step=2)["step"] == 2
    assert pair(*both)["step"] == 0


@pytest.mark.parametrize(
    ("step", "other", "both_are"),
    [(0, 2, "fastest"), (1, 1, "as_long"), (2, 3, "typical"), (3, 0, "as_long"), (4, 4, "slowest")],
)
def test_the_other_run_shows_the_step_that_is_as_long_among_its_own(
    step: int, other: int, both_are: str
) -> None:
    after, before = of_lengths(100, 200, 300, 400, 900), of_lengths(500, 200, 100, 300, 700)
    answer = pair(before, after, step=step)
    assert (answer["step"], answer["other"], answer["both_are"]) == (step, other, both_are)


def of_lengths(*lengths_us: int) -> Trace:
    ends = np.cumsum(lengths_us).tolist()
    steps = zip(ends, lengths_us, strict=True)
    lines = [f"main | {end - us} {end} | ProfilerStep#{n}" for n, (end, us) in enumerate(steps)]
    return annotate(drawn_trace("\n".join(lines)))


TASKS = """
    main | 0 100 | ProfilerStep#1
    main | 0  40 | aten::mm
    main | 50 90 | aten::relu
"""


def test_a_prediction_lies_below_the_step_as_it_is_replayed() -> None:
    answer = ask(opened(TASKS), "pair", changes="scale:select=name=aten::relu,factor=0.5")
    assert answer["upper"] == "before"
    assert [answer[side]["length_us"] for side in ("before", "after")] == [100, 80]
    assert partners(answer, "after")["aten::relu"] == ("aten::relu", -20)
    assert partners(answer, "before")["aten::mm"] == ("aten::mm", 0)


def test_a_timeline_has_as_many_rectangles_as_asked_for() -> None:
    asked = {"changes": "scale:select=name=aten::relu,factor=0.5"}
    few, many = (ask(opened(TASKS), "pair", **asked, most=most)["before"] for most in (1, 100))
    assert len(few["name"]) == 1
    assert sum(few["tasks"]) == len(many["name"]) > 1
    assert few["partner"] == [0]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "expected another open trace as against, or a rank as against_rank"),
        ({"changes": "bandwidth"}, "these steps have no collectives"),
        ({"changes": "bandwidth", "most": "all"}, "expected most to be a whole number"),
        ({"against": "gone"}, "no other trace is open"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(query: dict[str, str], reason: str) -> None:
    with pytest.raises((ServeError, ChangeError), match=reason):
        ask(opened(TASKS), "pair", **query)
