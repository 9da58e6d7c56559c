"""Two traces compared: what is beside what, which changes are real, and what is said where."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.models.diff import Row, RunComparison, compare, explain
from stepscope.models.diff.significance import differs, ratio_interval
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def run(*steps: int, kernel: str = "sgemm", **metadata: object) -> Trace:
    """A run whose steps last as given, us: forward in a module, its kernel, an optimizer."""
    lines, start = [], 0
    for number, length in enumerate(steps):
        end = start + length
        lines += [
            f"main | {start} {end} | ProfilerStep#{number}",
            f"main | {start + 1} {start + 9} | stepscope.module: net",
            f"main | {start + 2} {start + 8} | aten::linear",
            f"main | {start + 3} {start + 5} | cudaLaunchKernel | corr={number + 1}",
            f"main | {end - 6} {end - 2} | Optimizer.step#SGD.step",
            f"stream 7 | {start + 10} {end - 8} | {kernel} | corr={number + 1}",
        ]
        start = end
    return annotate(drawn_trace("\n".join(lines), **metadata))


def row(found: RunComparison, part: str, *key: str) -> Row:
    return next(one for one in found.parts[part] if one.key == key)


SLOW, FAST = run(100, 101, 102, 99), run(60, 61, 62, 59)


def test_the_step_is_compared_by_the_median_over_steps() -> None:
    step = compare(FAST, SLOW).step
    assert step.before is not None
    assert step.after is not None
    assert step.before.median_ms == pytest.approx(0.0605)
    assert step.after.median_ms == pytest.approx(0.1005)
    assert [step.after.least_ms, step.after.most_ms] == pytest.approx([0.099, 0.102])
    assert step.change_ms == pytest.approx(0.04)
    assert step.verdict == "slower"
    assert compare(SLOW, FAST).step.verdict == "faster"


def test_stages_modules_operators_and_kernels_are_beside_their_like() -> None:
    found = compare(FAST, SLOW)
    for part, key in {
        "stages": ("forward", "device"),
        "modules": ("net",),
        "operators": ("aten::linear",),
        "kernels": ("sgemm",),
    }.items():
        one = row(found, part, *key)
        assert one.before is not None
        assert one.change_ms == pytest.approx(0.04)
        assert one.verdict == "slower"
    assert row(found, "kernels", "sgemm").before.count == 1  # type: ignore[union-attr]


def test_a_kernel_of_another_name_is_new_and_the_old_one_gone_but_the_operator_is_one() -> None:
    found = compare(FAST, run(100, 101, 102, 99, kernel="wgmma"))
    assert row(found, "kernels", "sgemm").verdict == "gone"
    assert row(found, "kernels", "wgmma").verdict == "new"
    assert row(found, "operators", "aten::linear").verdict == "slower"


def test_the_biggest_changes_come_first() -> None:
    for rows in compare(FAST, SLOW).parts.values():
        changes = [abs(one.change_ms) for one in rows]
        assert changes == sorted(changes, reverse=True)


def test_a_change_within_what_the_steps_vary_by_is_unclear() -> None:
    assert compare(run(60, 100, 70), run(65, 110, 66)).step.verdict == "unclear"


def test_a_large_change_is_likely_although_one_of_six_steps_overlaps() -> None:
    """From 66 µs on average to 43, with one step as slow as before, and the same in the other order."""
    slow, fast = run(60, 90, 70, 50, 62, 100), run(40, 44, 75, 30, 46, 41)
    there, back = compare(slow, fast), compare(fast, slow)
    assert [(one.step.verdict, one.evidence, one.apart) for one in (there, back)] == [
        ("faster", "likely", (5, 6)),
        ("slower", "likely", (5, 6)),
    ]
    assert there.interval
    assert back.interval == pytest.approx([1 / there.interval[1], 1 / there.interval[0]])
    assert back.interval[0] > 1.2
    assert "more time, likely: 5 of 6 steps" in explain(back)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 25])
def test_the_interval_holds_the_true_ratio_in_nine_cases_of_ten(count: int) -> None:
    dice = np.random.default_rng(count)
    draws = ((dice.lognormal(5, 0.1, count), 1.4 * dice.lognormal(5, 0.1, count)) for _ in range(500))
    ends = [ratio_interval(*draw) or (0.0, 0.0) for draw in draws]
    assert np.mean([low <= 1.4 <= high for low, high in ends]) > 0.88


def test_of_one_step_nothing_is_told() -> None:
    assert compare(run(60), SLOW).step.verdict == "one_step"
    assert row(compare(run(60), SLOW), "kernels", "sgemm").verdict == "one_step"


def test_a_run_is_the_same_as_itself() -> None:
    found = compare(SLOW, SLOW)
    assert found.step.verdict == "same"
    rows = [one for rows in found.parts.values() for one in rows]
    assert rows
    assert {one.verdict for one in rows} == {"same"}


def test_where_one_side_has_no_device_operators_on_the_cpu_are_compared() -> None:
    text = "main | 0 50 | ProfilerStep#0\nmain | 5 20 | aten::linear"
    found = compare(SLOW, annotate(drawn_trace(text)))
    assert not found.before.on_device
    assert found.parts["kernels"] == []
    linear = row(found, "operators", "aten::linear")
    assert (linear.before.median_ms, linear.after.median_ms) == (0.004, 0.015)  # type: ignore[union-attr]


def test_what_else_differs_is_told() -> None:
    other = run(100, 101, 102, devices=({"name": "V100"},), world_size=2)
    assert compare(SLOW, other).differing == {"device": ("", "V100"), "ranks": ("1", "2")}


def test_a_run_of_another_framework_is_compared_by_stages_and_modules() -> None:
    found = compare(SLOW, run(60, 61, 62, 59, framework="jax", framework_version="0.10"))
    assert found.differing == {"framework": ("", "jax 0.10")}
    for part, key in (("stages", ("forward", "device")), ("modules", ("net",))):
        one = row(found, part, *key)
        assert one.before is not None
        assert one.after is not None
        # Of the step all but 18 us, in the median.
        assert [one.before.median_ms, one.after.median_ms] == pytest.approx([0.0825, 0.0425])
        assert one.verdict == "faster"


def test_a_rank_without_steps_is_refused() -> None:
    with pytest.raises(TraceError, match="there is no rank 3; the trace has 0"):
        compare(SLOW, FAST, rank=3)


# -- what is by chance


def test_one_slow_step_among_many_decides_nothing() -> None:
    steady = np.array([100.0, 101, 99, 100, 102, 100, 99, 101])
    assert differs(steady, np.append(steady[:-1], 400)) is False
    assert differs(steady, np.append(steady[:-1] - 10, 400)) is True


def test_one_slow_step_does_not_turn_faster_into_slower() -> None:
    step = compare(run(*[100] * 10), run(*[90] * 9, 1000)).step
    assert step.change_ms == pytest.approx(-0.01)
    assert step.verdict == "faster"


def test_steps_that_are_all_slower_differ_however_much_they_vary() -> None:
    assert (
        differs(np.array([75.5, 77, 76.3, 76.8, 78.5, 81.1]), np.array([100.3, 122, 166.5, 82, 107, 166]))
        is True
    )


@pytest.mark.parametrize("count", [2, 3, 4, 6, 10, 30])
def test_runs_that_do_not_differ_are_told_apart_in_one_case_of_fifty_at_most(count: int) -> None:
    random = np.random.default_rng(count)
    for draw in (lambda: random.normal(100, 5, count), lambda: random.lognormal(0, 1, count)):
        alarms = np.mean([bool(differs(draw(), draw())) for _ in range(1000)])
        assert alarms <= 0.025


def test_a_change_of_four_spreads_is_found_in_four_steps() -> None:
    random = np.random.default_rng(1)
    found = [differs(random.normal(100, 2, 4), random.normal(116, 2, 4)) for _ in range(200)]
    assert np.mean([bool(one) for one in found]) > 0.95


def test_values_without_spread_differ_if_they_are_not_equal() -> None:
    assert differs(np.array([3.0, 3, 3]), np.array([3.0, 3, 3])) is False
    assert differs(np.array([3.0, 3, 3]), np.array([4.0, 4, 4])) is True
    assert differs(np.array([3.0]), np.array([4.0, 4, 4])) is None
