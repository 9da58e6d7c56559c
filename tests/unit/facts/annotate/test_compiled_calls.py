"""Calls of compiled programs and what they wait for, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate.jax import calls as of_calls
from stepscope.facts.annotate.jax.calls import (
    BEFORE_RECORDING,
    UNKNOWN,
    CallWaits,
    call_around,
    call_starts,
    called_function,
    calls_in_order,
    calls_of_host_work,
    is_compiled_call,
    is_training_call,
    is_wait,
    iterations_by_calls,
    waits_for_calls,
)
from stepscope.testing import drawn_trace
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

CALLS = ["PjitFunction(f)", "JaxPmapFunction(f)", "PjitFunction(f(x))"]


def test_calls_and_waits_are_known_by_name() -> None:
    assert [called_function(name) for name in CALLS] == ["f", "f", "f(x)"]
    assert called_function("f") == "f"
    assert [is_compiled_call(name) for name in (*CALLS, "xPjitFunction(f)", "stepscope.gradient")] == [
        True
    ] * 3 + [False] * 2
    assert [is_training_call(name) for name in (CALLS[0], "stepscope.gradient", "gradient")] == [
        True,
        True,
        False,
    ]
    waits = ["BlockHostUntilReady", "Buffer::Await", "wait: float(x)", "ArrayImpl.copy_to_host_async"]
    assert all(map(is_wait, waits))
    assert not any(map(is_wait, ["Buffer::Awaits", "a wait: x", "xArrayImpl.copy_to_host_async", "f"]))


@pytest.mark.parametrize(
    ("begin", "called", "found"),
    [
        ([10, 20, 30], [0, 15, 25], [0, 1, 2]),
        ([10, 20, 30], [15, 25], [-2, 0, 1]),  # the first was called before
        ([10, 20], [15, 18], [-2, 0]),
        ([10, 20, 30], [5, 25, 26], [-2, 0, 1]),
        ([10], [5, 6], [0]),
        ([10, 20], [], [-2, -2]),
        ([], [5], []),
    ],
)
def test_runs_belong_to_calls_in_their_order(begin: list[int], called: list[int], found: list[int]) -> None:
    calls = np.arange(len(called))
    assert calls_in_order(np.array(begin), calls, np.array(called, np.int64)).tolist() == found
    assert (UNKNOWN, BEFORE_RECORDING) == (-1, -2)


def test_a_call_recorded_in_itself_is_one() -> None:
    trace = drawn_trace("""
        main | 0 90 | PjitFunction(f) | cat=runtime
        main | 5 80 | PjitFunction(f) | cat=runtime
        main | 6 70 | PjitFunction(f) | cat=runtime
        main | 7 60 | PjitFunction(g) | cat=runtime
        main | 8 50 | aten::x
        main | 95 99 | aten::y
    """)
    assert call_around(trace).tolist() == [0, 0, 0, 3, 3, -1]


def test_work_of_the_host_belongs_to_the_call_of_its_run() -> None:
    """By ids of runs; the last run has no call with its id, and is of the call that is left."""
    trace = drawn_trace("""
        main |   0 20 | PjitFunction(f) | cat=runtime
        main |   5 10 | Executable::Execute | cat=runtime corr=1
        pool |  12 40 | fusion | scope=jit(f)/a corr=1
        pool |  15 20 | inside
        main |  50 70 | PjitFunction(g) | cat=runtime
        pool |  75 80 | other | scope=jit(g)/a corr=2
        pool |  85 90 | again | scope=jit(h)/a corr=3
    """)
    found = calls_of_host_work(trace).tolist()
    names = list(trace.events.text("name"))
    assert dict(zip(names, found, strict=True)) == {
        **{"PjitFunction(f)": -1, "Executable::Execute": -1, "fusion": 0, "inside": 0},
        **{"PjitFunction(g)": -1, "other": 4, "again": -1},
    }
    assert set(calls_of_host_work(drawn_trace("pool | 0 9 | x | scope=jit(f)/a corr=1")).tolist()) == {-1}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], [0, 60]),  # none is seen to execute: the outermost
        (["main | 10 20 | PjRtExecutable::Execute | cat=runtime"], [0, 5, 60]),
        (
            [
                "main | 10 20 | Executable::Execute | cat=runtime",
                "main | 65 70 | Executable::Execute | cat=runtime",
            ],
            [5, 60],
        ),
    ],
)
def test_calls_that_execute_a_program(lines: list[str], found: list[int]) -> None:
    calls = [(0, 50, "f"), (5, 40, "g"), (60, 90, "f")]
    text = [f"main | {start} {end} | PjitFunction({name}) | cat=runtime" for start, end, name in calls]
    trace = drawn_trace("\n".join([*text, *lines]))
    assert (trace.events["start_ns"][of_calls._Calls(trace).rows] // 1000).tolist() == found


def test_a_program_that_executes_after_all_calls_was_called_in_one_itself() -> None:
    trace = drawn_trace("""
        main |  0 20 | PjitFunction(f) | cat=runtime
        main |  5 10 | Executable::Execute | cat=runtime
        main | 30 50 | Executable::Execute | cat=runtime
        main | 31 40 | Executable::ExecuteHelper | cat=runtime
        pool | 60 70 | Executable::Execute | cat=runtime
    """)
    assert (of_calls._Calls(trace).cut_off // 1000).tolist() == [30]


def test_the_run_of_an_event_spreads_to_what_is_around_and_inside_it() -> None:
    parent = np.array([-1, 0, 1, 1, 3, -1], np.int32)
    run = np.array([-1, -1, 5, 7, -1, -1])
    assert of_calls._spread(parent, run).tolist() == [5, 5, 5, 7, 7, -1]
    assert of_calls._spread(parent, np.full(6, -1)).tolist() == [-1] * 6


def test_a_thread_waits_from_the_start_of_a_wait_to_its_end() -> None:
    waits = CallWaits(np.array([10, 30]), np.array([20, 40]), np.array([3, -1]))
    assert waits.at(np.array([9, 10, 19, 20, 29, 30, 39, 40])).tolist() == [-1, 3, 3, -1, -1, -1, -1, -1]
    none = CallWaits(*(np.zeros(0, np.int64) for _ in range(3)))
    assert none.at(np.array([5])).tolist() == [-1]


def test_a_wait_is_for_the_last_call_before_it() -> None:
    """Who waits for arrays may wait for data, who reads a value for a program; else for its last work."""
    trace = drawn_trace("""
        main |   0 10 | PjitFunction(f) | cat=runtime
        main |  12 20 | wait: float(x) | cat=runtime
        main |  22 24 | BatchedDevicePut | cat=runtime
        main |  25 30 | jax.block_until_ready wait | cat=runtime
        main |  31 33 | BlockHostUntilReady | cat=runtime
        main |  34 36 | wait: float(y) | cat=runtime
        main |  40 60 | PjitFunction(g) | cat=runtime
        main |  45 50 | wait: inside | cat=runtime
        pool |  61 65 | a | scope=jit(g)/a
        pool |  62 69 | b | scope=jit(g)/b
        main |  70 75 | wait: float(z) | cat=runtime
        main |  76 77 | wait: float(z) | cat=runtime
    """)
    stage = {"PjitFunction(f)": "forward", "BatchedDevicePut": "transfer", "a": "loss", "b": "backward"}
    trace = trace.with_events(stage=Text.of(stage.get(name or "") for name in trace.events.text("name")))
    waits = waits_for_calls(trace, 0)
    found = [None if code < 0 else STAGES[code] for code in waits.stage.tolist()]
    begin = (waits.starts // 1000).tolist()
    assert dict(zip(begin, found, strict=True)) == {
        **{12: "forward", 31: "transfer", 34: "forward", 70: "backward", 76: "backward"}
    }


@pytest.mark.parametrize(
    ("row", "found", "last_is_whole"),
    [
        ("f....f....f....", [0, 5, 10], True),
        ("f.g..f.g..f.g..", [0, 5, 10], True),
        ("f.g..f.g..f....", [0, 5, 10], False),
        (".g.f..g.f..g.f", [1, 6, 11], True),  # the pause is before g
        ("f....", None, False),
        ("f.g", None, False),
        ("f.hh.f.hh.f.hh.", [0, 5, 10], True),
    ],
)
def test_iterations_begin_after_the_longest_pause(
    row: str, found: list[int] | None, last_is_whole: bool
) -> None:
    lines = [
        f"main | {10 * place} {10 * place + 9} | PjitFunction({letter}) | cat=runtime"
        for place, letter in enumerate(row)
        if letter != "."
    ]
    iterations = iterations_by_calls(drawn_trace("\n".join(["main | 0 0 | x", *lines])), 0)
    if found is None:
        assert iterations is None
        return
    assert iterations is not None
    assert (iterations.starts // 10_000).tolist() == found
    assert iterations.last_is_whole is last_is_whole


def test_steps_begin_with_the_call_around_their_event() -> None:
    trace = drawn_trace("""
        main |  0 50 | PjitFunction(f) | cat=runtime
        main | 10 40 | PjitFunction(g) | cat=runtime
        main | 20 30 | stepscope.step#1 | cat=annotation
        main | 60 70 | stepscope.step#2 | cat=annotation
    """)
    assert (call_starts(trace, np.array([2, 3])) // 1000).tolist() == [0, 60]


def test_the_work_of_a_program_is_that_of_its_operations() -> None:
    trace = drawn_trace("""
        pool |  0 10 | a | scope=jit(f)/a
        pool |  2  5 | b | scope=jit(g)/b
        pool | 20 30 | c | scope=jit(f)/c
        pool | 40 90 | d
        pool | 95 96 | e | scope=jit(h)/transpose(jvp())/e
    """)
    assert of_calls._work(trace) == {"f": 17_000, "g": 3_000, "h": 1_000}
    assert of_calls.differentiated(trace) == {"h"}
