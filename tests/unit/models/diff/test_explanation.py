"""One sentence says what changed, on which side, by how much, and what bounds the step."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.diff import compare, explain
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

STEPS = 5


def run(
    step_us: int, work_us: int, kernel: str = "volta_sgemm", steps: int = STEPS, loads: bool = False
) -> Trace:
    """Steps of about that length with a kernel of about that length, and perhaps a wait for data."""
    text, at = [], 0
    for number in range(steps):
        end = at + step_us + number
        wait = f"{at + work_us + 20} {end - 10}"
        loading = f"main | {wait} | enumerate(DataLoader)#_Next.__next__ | cat=annotation"
        text += [
            f"main | {at} {end} | ProfilerStep#{number}",
            *([loading] if loads else []),
            f"main | {at + 2} {at + 8} | aten::mm",
            f"main | {at + 3} {at + 5} | cudaLaunchKernel | corr={number + 1}",
            f"stream 7 | {at + 10} {at + 10 + work_us + number} | {kernel} | corr={number + 1}",
            f"main | {end - 8} {end - 4} | aten::relu",
            f"main | {end - 7} {end - 6} | cudaLaunchKernel | corr={100 + number}",
            f"stream 7 | {end - 5} {end - 3} | elementwise | corr={100 + number}",
        ]
        at = end
    return annotate(drawn_trace("\n".join(text)))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            run(1000, 900),
            run(600, 500),
            "B takes 40% less time: device work fell by 44% (mostly matrix products); the step is now "
            "bound by the device and the CPU, before by the device.",  # it awaits launches for 15 %
        ),
        (
            run(1000, 300),
            run(1000, 200),
            "B takes as long as A; device work fell by 33% (mostly matrix products); idle time while "
            "the CPU prepares work rose by 0.1 ms; the step stays bound by the CPU.",
        ),
        (
            run(600, 500),
            run(1000, 480),
            "B takes 66% more time: idle time while the CPU prepares work rose by 0.42 ms; device "
            "work fell by 4.0% (mostly matrix products); the step is now bound by the CPU, before by "
            "the device and the CPU.",
        ),
        (
            run(1000, 900, steps=1),
            run(500, 400, steps=1),
            "B takes 50% less time, but A has only one step, so this may be noise; device work fell "
            "by 55% (mostly matrix products); the step is now bound by the device and the CPU, before "
            "by the device.",
        ),
    ],
    ids=["less work", "less work but bound by the CPU", "the bound moves", "one step"],
)
def test_what_changed(before: Trace, after: Trace, sentence: str) -> None:
    assert explain(compare(before, after)) == sentence


def test_the_same_run_has_nothing_to_explain() -> None:
    same = run(1000, 900)
    assert explain(compare(same, same)) == (
        "B takes as long as A; device work is the same; the step stays bound by the device."
    )


def test_without_a_device_the_stage_that_changed_most_explains_it() -> None:
    def on_cpu(us: int) -> Trace:
        text = [
            f"main | {1000 * one + (us - 500) * one} {1000 * (one + 1) + (us - 500) * (one + 1)} "
            f"| ProfilerStep#{one}\nmain | {1000 * one + (us - 500) * one + 10} "
            f"{1000 * one + (us - 500) * one + 10 + us + one} | aten::mm"
            for one in range(STEPS)
        ]
        return annotate(drawn_trace("\n".join(text)))

    said = explain(compare(on_cpu(500), on_cpu(800)))
    assert said.startswith("B takes 30% more time: forward CPU rose by 0.3 ms")


def test_a_device_that_awaits_data_does_not_bound_the_step() -> None:
    """Although it computes for most of it: the verdict of the report says so, too."""
    said = explain(compare(run(1000, 600, loads=True), run(650, 600, loads=True)))
    assert said.endswith("the step is now bound by the device, before by data loading.")


@pytest.mark.parametrize("is_before", [True, False])
def test_no_reason_is_given_where_a_side_lacks_its_work(is_before: bool) -> None:
    """As of a file that was shortened by its kernels: they are not new on the other side."""
    lines = []
    for number in range(STEPS):
        at = 1000 * number
        lines += [f"main | {at} {at + 1000} | ProfilerStep#{number}", f"main | {at + 2} {at + 8} | aten::mm"]
        lines += [f"main | {at + 3} {at + 5} | cudaLaunchKernel | corr={number + 1}"]
        lines += [f"main | {at + 9} {at + 900} | cudaDeviceSynchronize"]
    sides = [annotate(drawn_trace("\n".join(lines))), run(600, 500)]
    found = compare(*(sides if is_before else sides[::-1]))
    assert explain(found).endswith(
        " time. Cannot tell why. Reason: 5 of 5 launches lack recorded device work."
    )
    assert [*found.before.notes, *found.after.notes] == ["5 of 5 launches lack recorded device work"]
