"""Runs of compiled programs on devices, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate.jax import device_runs, stages
from stepscope.facts.annotate.links.launches import device_work, link_launches
from stepscope.testing import drawn_trace
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace


def device_trace(*operations: tuple[str, int]) -> Trace:
    return drawn_trace("\n".join(f"stream 1 | {at} {at + 1} | {name}" for name, at in operations))


@pytest.mark.parametrize(
    ("row", "calls", "first"),
    [
        ("abc.abc.abc", 3, [0, 4, 8]),
        ("bca.bca.bca", 3, [0, 4, 8]),
        ("aab.aab.aab", 3, [2, 6, 10]),  # b occurs as often as the program was called
        ("ab....cab....cab....c", 3, [6, 13, 20]),  # the device waits longest before c
    ],
)
def test_a_run_begins_with_the_operation_that_occurs_as_often_as_calls(
    row: str, calls: int, first: list[int]
) -> None:
    places = [place for place, letter in enumerate(row) if letter != "."]
    trace = device_trace(*((row[place], place) for place in places))
    found = device_runs._first_of_runs(trace, np.arange(len(places), dtype=np.int32), calls)
    assert [place for place, begins in zip(places, found.tolist(), strict=True) if begins] == first


@pytest.mark.parametrize(("launched", "first"), [(True, [0, 60]), (False, range(0, 120, 10))])
def test_what_a_program_repeats_in_a_loop_begins_no_run(launched: bool, first: list[int]) -> None:
    """As `lax.scan` in a program of which no operation runs once; without launches, runs may be of before."""
    lines = ["main | 0 1 | PjitFunction(f) | cat=runtime"]
    for number, at in enumerate(range(0, 120, 5)):
        lines.append(f"stream 1 | {at + 3} {at + 6} | {'ab'[number % 2]} | corr={number + 1}")
        lines += [f"pool | {at} {at + 1} | cuLaunchKernel | corr={number + 1}"] * launched
    trace = link_launches(drawn_trace("\n".join(lines)))
    work = np.flatnonzero(device_work(trace)).astype(np.int32)
    begins = device_runs._first_of_runs(trace, work, 2)
    assert [at // 1000 - 3 for at in trace.events["start_ns"][work[begins]].tolist()] == [*first]


def test_the_pause_before_work_is_a_median() -> None:
    trace = device_trace(("a", 0), ("b", 3), ("a", 9), ("b", 10), ("a", 20))
    work = np.arange(5, dtype=np.int32)
    chosen = trace.events.text("name").mask("a")
    assert device_runs._median_pause(trace, work, chosen) == 7_000
    assert device_runs._median_pause(trace, work, ~chosen) == 0
    assert device_runs._median_pause(trace, work[:1], chosen[:1]) == 0


def test_work_is_called_for_when_its_program_or_launch_is() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0 10 | PjitFunction(f) | cat=runtime
        other    | 20 22 | cudaLaunchKernel | corr=1
        main     | 30 40 | PjitFunction(g) | cat=runtime
        main     | 32 34 | cudaLaunchKernel | corr=2
        stream 1 | 50 55 | a | corr=1 hlo__module=jit_f
        stream 1 | 60 65 | b | corr=2
    """)
    )
    names = trace.events.text("name")
    calls = device_runs.calls_of_device_work(trace).tolist()
    assert {names[row]: call for row, call in enumerate(calls) if call != -1} == {"a": 0}
    assert (device_runs.call_times(trace) // 1000).tolist() == [0, 32]


def test_work_launched_within_its_call_needs_no_link_by_order() -> None:
    """The call itself launches it, and is the first event of the file."""
    trace = link_launches(
        drawn_trace("""
        main     |  0 10 | PjitFunction(f) | cat=runtime corr=1
        stream 1 | 50 55 | a | corr=1 hlo__module=jit_f
        stream 1 | 60 65 | b | hlo__module=jit_f
    """)
    )
    assert trace["launches"]["cpu_event"].tolist() == [0]
    assert device_runs.calls_of_device_work(trace).tolist() == [-1, -1, 0]


def test_operations_outside_of_programs_have_the_stage_of_the_range_around_their_call() -> None:
    """Unless their own scope says more."""
    trace = drawn_trace("""
        main |  0 50 | evaluate | cat=annotation
        main |  2 10 | PjitFunction(add) | cat=runtime
        pool |  5  9 | plain | scope=jit(add)/add corr=1
        main | 12 20 | PjitFunction(f) | cat=runtime
        pool | 15 19 | scoped | scope=jit(f)/jvp(Net)/dot corr=2
        pool | 21 22 | no_scope | corr=2
        main | 60 70 | PjitFunction(mul) | cat=runtime
        pool | 65 69 | outside | scope=jit(mul)/mul corr=3
    """)
    stage, again = stages.stages_by_scope(trace)
    names = trace.events.text("name")
    found = {names[row]: STAGES[code] for row, code in enumerate(stage.tolist()) if code >= 0}
    assert found == {"plain": "evaluation", "scoped": "forward", "outside": "forward"}
    assert not again.any()
    assert stages.stages_by_scope(drawn_trace("main | 0 9 | forward | cat=annotation"))[0].tolist() == [-1]


@pytest.mark.parametrize(
    ("function", "line", "named"),
    [
        ("jit(f)/x", "", "f"),
        ("", "hlo__module=jit_g", "g"),
        ("", "hlo__module=pmap_h_", "h"),
        ("", "hlo__module=other", ""),
        ("", "", ""),
        ("jit(<lambda>)/x", "", "_lambda"),
    ],
)
def test_the_function_of_device_work_is_named_by_its_scope_or_module(
    function: str, line: str, named: str
) -> None:
    scope = f"scope={function}" if function else ""
    trace = link_launches(drawn_trace(f"stream 1 | 0 9 | a | n=1 {scope} {line}"))
    assert device_runs.functions_of_work(trace, np.array([0], np.int32)).tolist() == [named]


def test_runs_are_those_of_a_devices_line_of_programs() -> None:
    trace = drawn_trace("""
        stream 1 |  0 20 | jit_f(123) | cat=annotation
        stream 2 |  5 10 | a
        stream 2 | 18 25 | b
        stream 2 | 22 24 | c
        stream 1 | 30 40 | pmap_g_h(7) | cat=annotation
        stream 2 | 30 35 | d
    """)
    names = trace.events.text("name")
    work = np.flatnonzero(names.mask("a", "b", "c", "d")).astype(np.int32)
    runs = device_runs._recorded_runs(trace, work)
    assert runs is not None
    assert [*runs.functions] == ["f", "g_h"]
    assert (runs.starts // 1000).tolist() == [0, 30]
    assert dict(zip([names[row] for row in work], runs.of_work.tolist(), strict=True)) == {
        "a": 0,
        "b": 0,
        "c": 2,
        "d": 1,
    }
    others = trace.with_table(trace["tracks"].with_columns(process=Text.of(["1", "2"])))
    assert device_runs._recorded_runs(others, work) is None
