"""The answer that draws a step of each of two traces on one axis."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import ask

from stepscope.annotate import annotate
from stepscope.errors import ServeError
from stepscope.serve.json_encoding import encode
from stepscope.serve.trace_view import TraceView
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
            lines.append(f"comm 8 | {forward + 50} {forward + 250} | ncclDevKernel_AllReduce"
                         f" | corr={9 * step + 2}\n")  # fmt: skip
    return annotate(drawn_trace("".join(lines)))


def drawn(after: Trace, before: Trace, **query: Any) -> dict[str, Any]:
    return ask(TraceView(after, lambda id: before), "aligned", against="a", **query)


def pieces(answer: dict[str, Any], side: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Start and duration of each rectangle by its row and name, µs."""
    columns = answer[side]
    rows = [answer["threads"][row]["name"] for row in columns["thread"]]
    keys = zip(rows, columns["name"], strict=True)
    times = zip(columns["start_us"], columns["duration_us"], strict=True)
    return dict(zip(keys, times, strict=True))


def test_both_steps_begin_at_zero() -> None:
    """Wherever they were recorded: the other loads data for 100 µs, this one for 400."""
    answer = drawn(training(400), training(100))
    before, after = pieces(answer, "before"), pieces(answer, "after")
    assert before["CPU", "data loading"] == (0, 100)
    assert after["CPU", "data loading"] == (0, 400)
    assert before["device", "gemm"] == (130, 100)
    assert after["device", "gemm"] == (430, 100)
    assert answer["after"]["length_us"] == 900
    assert json.loads(encode(answer)) == json.loads(json.dumps(answer))


def test_work_has_the_stage_that_it_belongs_to() -> None:
    answer = drawn(training(400), training(100))
    stages = dict(zip(answer["after"]["name"], answer["after"]["stage"], strict=True))
    assert (stages["data loading"], stages["gemm"]) == ("data_loading", "forward")


def test_what_one_of_them_does_has_a_row_in_both() -> None:
    answer = drawn(training(100, communicates=True), training(100))
    names = [one["name"] for one in answer["threads"]]
    assert names == ["CPU", "device", "device, communication"]
    assert ("device, communication", "ncclDevKernel_AllReduce") in pieces(answer, "after")
    assert not any(row == names[2] for row, _ in pieces(answer, "before"))


def test_the_step_is_the_one_asked_for_beside_one_of_median_length() -> None:
    """Of steps of one length it is the first."""
    answer = drawn(training(100, steps=3), training(100, steps=5), step=2)
    assert (answer["after_step"], answer["before_step"]) == (2, 0)


def test_the_other_trace_has_to_be_named() -> None:
    with pytest.raises(ServeError, match="expected the id of another open trace as against"):
        ask(TraceView(training(100)), "aligned")
