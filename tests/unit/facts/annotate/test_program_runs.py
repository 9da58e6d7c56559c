"""Compiled work on threads of the host belongs to the call that asked for it, however late."""

from __future__ import annotations

import numpy as np
import pytest
from facts import of_events, us

from stepscope.facts.annotate.jax.calls import BEFORE_RECORDING, UNKNOWN, calls_of_host_work
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def call(function: str, start: float, end: float, *inside: str) -> list[str]:
    """A call as JAX records it, twice, with the events inside it."""
    line = f"main | {start} {end} | PjitFunction({function}) | cat=runtime"
    return [line, line, *inside]


def run(function: str, number: int, start: float, end: float, track: str = "pool") -> list[str]:
    """A run of a program: two operations within an executor's event, one of which waits."""
    middle = (start + end) / 2
    of = f"cat=cpu_op corr={number} scope=jit({function})"
    return [
        f"{track} | {start} {end} | ThunkExecutor::Execute | cat=runtime",
        f"{track} | {start} {middle} | dot-{function}-{number} | {of}/dot_general",
        f"{track} | {start} {middle - 1} | Await-{number} | cat=runtime",
        f"{track} | {middle} {end} | copy-{function}-{number} | cat=cpu_op corr={number}",
    ]


def linked(*lines: list[str]) -> dict[str, float]:
    """The start of the call of each event with a run, in µs, else -1, or -2 if called before."""
    trace = drawn_trace("\n".join(line for part in lines for line in part))
    return _linked(trace)


def _linked(trace: Trace) -> dict[str, float]:
    called, start = calls_of_host_work(trace), trace.events["start_ns"] / 1000
    names = trace.events.text("name")
    return {
        names[row] or "": float(start[found] if found >= 0 else found)
        for row, found in enumerate(called.tolist())
        if "-" in (names[row] or "")
    }


def test_the_kth_run_belongs_to_the_kth_call_when_all_are_in_flight() -> None:
    found = linked(
        *(call("update", 10 * k, 10 * k + 5) for k in range(3)),
        *(run("update", 70 + k, 100 * k + 7, 100 * k + 90) for k in range(3)),
    )
    for k in range(3):
        assert {found[f"{name}-{70 + k}"] for name in ("dot-update", "copy-update", "Await")} == {10 * k}


def test_two_functions_interleave() -> None:
    found = linked(
        *(call("update", 20 * k, 20 * k + 5) for k in range(3)),
        *(call("evaluate", 20 * k + 10, 20 * k + 15) for k in range(3)),
        *(run("update", 70 + k, 100 * k + 70, 100 * k + 90) for k in range(3)),
        *(run("evaluate", 7 + k, 100 * k + 92, 100 * k + 98) for k in range(3)),
    )
    assert [found[f"dot-update-{70 + k}"] for k in range(3)] == [0, 20, 40]
    assert [found[f"dot-evaluate-{7 + k}"] for k in range(3)] == [10, 30, 50]


def test_runs_that_the_calls_leave_over_were_called_before_the_recording() -> None:
    found = linked(
        *(call("update", 10 * k, 10 * k + 5) for k in range(2)),
        *(run("update", 70 + k, 100 * k + 50, 100 * k + 90) for k in range(4)),
    )
    expected = [BEFORE_RECORDING, BEFORE_RECORDING, 0, 10]
    assert [found[f"dot-update-{70 + k}"] for k in range(4)] == expected


def test_so_were_runs_that_began_before_the_call_that_would_be_theirs() -> None:
    """The last run is not recorded: the profile ended before it began."""
    found = linked(
        *(call("update", 10 + 100 * k, 15 + 100 * k) for k in range(3)),
        *(run("update", 70 + k, 100 * k, 100 * k + 60) for k in range(3)),
    )
    assert [found[f"dot-update-{70 + k}"] for k in range(3)] == [BEFORE_RECORDING, 10, 110]


def test_the_id_of_the_run_goes_before_order() -> None:
    """JAX up to 0.9 writes it on the calling thread too."""
    launch = "main | {} {} | TfrtCpuExecutable::ExecuteHelper | cat=runtime corr={}"
    found = linked(
        call("update", 0, 5, launch.format(1, 4, 71)),
        call("update", 10, 15, launch.format(11, 14, 72)),
        run("update", 70, 6, 9),
        run("update", 71, 20, 40),
        run("update", 72, 50, 60),
    )
    ids = [70, 71, 72]
    assert [found[f"dot-update-{number}"] for number in ids] == [BEFORE_RECORDING, 0, 10]


def test_a_small_program_that_runs_inside_its_call_leaves_the_others_in_order() -> None:
    inside = [line.replace("pool", "main") for line in run("update", 71, 12, 14)]
    helper = [
        "pool | 160 170 | helped | cat=cpu_op corr=71 scope=jit(update)/dot_general",
        "pool | 161 162 | Await-71 | cat=runtime",
    ]
    found = linked(
        call("update", 0, 5),
        call("update", 10, 15, *inside, *helper),
        call("update", 20, 25),
        run("update", 70, 7, 9),
        run("update", 72, 40, 60),
    )
    assert (found["dot-update-70"], found["Await-71"], found["dot-update-72"]) == (0, 10, 20)


def test_calls_within_a_call_that_is_traced_run_nothing() -> None:
    execute = "main | {} {} | CommonPjRtLoadedExecutable::ExecuteHelper | cat=runtime"
    found = linked(
        call("update", 0, 50, *call("clip", 10, 20), execute.format(30, 40)),
        call("clip", 60, 70, execute.format(61, 69)),
        run("update", 5, 80, 90),
        run("clip", 6, 91, 95),
    )
    assert (found["dot-update-5"], found["dot-clip-6"]) == (0, 60)


def test_the_runs_of_several_devices_share_the_call() -> None:
    found = linked(
        *(call("update", 10 * k, 10 * k + 5) for k in range(2)),
        *(run("update", 70, 20 + d, 60 + d, f"pool {d}") for d in range(4)),
        *(run("update", 71, 90 + d, 95 + d, f"pool {d}") for d in range(4)),
    )
    assert (found["dot-update-70"], found["dot-update-71"]) == (0, 10)


def test_work_of_a_function_that_nothing_calls_is_unknown() -> None:
    found = linked(call("update", 0, 5), run("other", 5, 6, 9))
    assert found["dot-other-5"] == UNKNOWN


def test_a_step_lasts_from_the_end_of_the_work_before_it_to_the_end_of_its_own() -> None:
    """A loop that reads nothing back: three calls before the first work is done."""
    lines = [
        *(line for k in range(4) for line in call("update", 10 * k, 10 * k + 5)),
        *(line for k in range(4) for line in run("update", 70 + k, 100 * k + 50, 100 * k + 140)),
    ]
    trace = find_steps(link_launches(drawn_trace("\n".join(lines))))
    found = us(trace, "steps", "start_ns", "window_start_ns", "window_end_ns")
    assert found == [(0, 0, 140), (10, 140, 240), (20, 240, 340)]


def test_the_first_window_begins_after_work_that_was_called_for_earlier() -> None:
    lines = [
        *(line for k in range(4) for line in call("update", 10 * k, 10 * k + 5)),
        *(line for k in range(5) for line in run("update", 70 + k, 100 * k + 5, 100 * k + 95)),
    ]
    trace = find_steps(link_launches(drawn_trace("\n".join(lines))))
    assert us(trace, "steps", "window_start_ns", "window_end_ns")[:2] == [(95, 195), (195, 295)]


@pytest.mark.parametrize("seed", range(20))
def test_in_any_loop_every_step_holds_its_own_executions(seed: int) -> None:
    """Steps of one to three functions, any number of them in flight, with waits here and there."""
    generator = np.random.default_rng(seed)
    functions = ["update", "evaluate", "augment"][: generator.integers(1, 4)]
    lines, truth, now, free, number = ([], {}, 0.0, 0.0, {f: 100 * i for i, f in enumerate(functions)})
    steps = int(generator.integers(3, 9))
    for step in range(steps + 1):
        for function in functions:
            lines += call(function, now, now + 4)
            number[function] += 1
            begin = max(free, now + 5)
            free = begin + float(generator.integers(4, 90))
            thread = f"pool {generator.integers(3)}"
            lines += run(function, 1000 + number[function], begin, free - 1, thread)
            truth[f"dot-{function}-{1000 + number[function]}"] = step
            now += float(generator.integers(6, 30))
        if generator.random() < 0.3:
            now = max(now, free)  # the loop reads its loss
        lines.append(f"main | {now} {now} | stepscope.step#step_num={step + 1}")
    marked = drawn_trace(
        "\n".join(["main | 0 0 | stepscope.step#step_num=0", *lines]),
        capture={"steps_recorded": [*range(steps)], "framework": "jax"},
    )
    found = of_events(find_steps(link_launches(marked)), "step")
    expected = {name: step if step < steps else None for name, step in truth.items()}
    assert {name: found[name] for name in truth} == expected


CUT_OFF = ["main | 302 305 | CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice | cat=runtime"]


def test_a_run_whose_call_the_recording_ended_in_belongs_to_no_other() -> None:
    """The recorder stops in a call, which then has no event: its run is left over."""
    found = linked(
        *(call("update", 100 * k, 100 * k + 5) for k in range(3)),
        CUT_OFF,
        *(run("update", 70 + k, 100 * k + 3, 100 * k + 60) for k in range(4)),
    )
    assert [found[f"dot-update-{70 + k}"] for k in range(4)] == [0, 100, 200, UNKNOWN]


def test_the_call_that_the_recording_ended_in_may_not_have_run() -> None:
    """Then the run without a call is the first one."""
    found = linked(
        *(call("update", 100 * k + 50, 100 * k + 55) for k in range(3)),
        CUT_OFF,
        *(run("update", 70 + k, 100 * k, 100 * k + 40) for k in range(4)),
    )
    assert [found[f"dot-update-{70 + k}"] for k in range(4)] == [BEFORE_RECORDING, 50, 150, 250]


def test_runs_may_be_left_over_at_both_ends() -> None:
    found = linked(
        *(call("update", 100 * k + 50, 100 * k + 55) for k in range(2)),
        CUT_OFF,
        *(run("update", 70 + k, 100 * k, 100 * k + 40) for k in range(3)),
        run("update", 73, 303, 340),
    )
    assert [found[f"dot-update-{70 + k}"] for k in range(4)] == [BEFORE_RECORDING, 50, 150, UNKNOWN]
