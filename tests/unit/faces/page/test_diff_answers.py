"""The page's answer about two traces compared."""

from __future__ import annotations

import json

import pytest
from serving import ask

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError, TraceError
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def steps(gemm_us: float, extra: str = "add", count: int = 6, length: int = 1000) -> Trace:
    """Steps with a matrix product, a kernel that stays, and an extra one."""
    lines = [
        f"""
        main | {at} {at + length - 100} | ProfilerStep#{step}
        main | {at + 5} {at + 100} | aten::mm
        main | {at + 10} {at + 20} | cudaLaunchKernel | corr={10 * step + 1}
        main | {at + 30} {at + 40} | cudaLaunchKernel | corr={10 * step + 2}
        main | {at + 50} {at + 60} | cudaLaunchKernel | corr={10 * step + 3}
        stream 7 | {at + 100} {at + 100 + gemm_us + step % 3} | gemm | corr={10 * step + 1}
        stream 7 | {at + 500} {at + 510 + step % 2} | softmax | corr={10 * step + 2}
        stream 7 | {at + 600} {at + 620} | {extra} | corr={10 * step + 3}
        """
        for step, at in enumerate(range(0, length * count, length))
    ]
    return annotate(drawn_trace("".join(lines)))


def view_of(after: Trace, before: Trace) -> TraceView:
    return TraceView(after, lambda id: before)


def test_kernels_are_compared_by_name_the_largest_change_first() -> None:
    answer = ask(view_of(steps(200), steps(100, "mul")), "diff", against="a")
    rows = [
        (one["short"], one["verdict"], round(one["change_ms"] * 1000, 1))
        for one in answer["parts"]["kernels"]
    ]
    assert rows[0] == ("gemm", "slower", 100)
    assert sorted(rows[1:3]) == [("add", "new", 20), ("mul", "gone", -20)]
    assert rows[3] == ("softmax", "same", 0)
    gemm = answer["parts"]["kernels"][0]
    assert gemm["before"]["median_ms"] == pytest.approx(0.101)
    after = [gemm["after"][key] for key in ("least_ms", "median_ms", "most_ms", "count")]
    assert after == pytest.approx([0.2, 0.201, 0.202, 1])
    assert gemm["ratio"] == pytest.approx(0.201 / 0.101)
    assert answer["on_device"]
    assert json.loads(json_bytes(answer)) == json.loads(json.dumps(answer))


def test_the_use_of_time_that_changed_with_the_step_is_its_cause() -> None:
    answer = ask(view_of(steps(200, length=1100), steps(200)), "diff", against="a")
    assert (answer["step"]["verdict"], answer["cause"]["name"]) == ("slower", "idle: host")
    assert answer["step"]["change_ms"] == pytest.approx(0.1)
    same = ask(view_of(steps(300), steps(200)), "diff", against="a")
    assert (same["step"]["verdict"], same["cause"]) == ("same", None)


def test_what_is_within_the_noise_is_called_so() -> None:
    answer = ask(view_of(steps(100.4), steps(100)), "diff", against="a")
    gemm = next(one for one in answer["parts"]["kernels"] if one["name"] == "gemm")
    assert gemm["verdict"] == "unclear"
    answer = ask(view_of(steps(200), steps(100, count=1)), "diff", against="a")
    assert answer["parts"]["kernels"][0]["verdict"] == "one_step"


def test_both_sides_are_described() -> None:
    answer = ask(view_of(steps(100), steps(100, count=2)), "diff", against="a")
    assert [answer[side]["steps"] for side in ("before", "after")] == [2, 6]
    assert answer["before"]["ranks"] == [0]
    assert not answer["before"]["inferred"]


def test_a_comparison_with_nothing_is_refused() -> None:
    with pytest.raises(ServeError, match="expected another open trace as against, or a rank"):
        ask(view_of(steps(100), steps(100)), "diff")
    with pytest.raises(TraceError, match="there is no rank 3"):
        ask(view_of(steps(100), steps(100)), "diff", against="a", rank=3)
