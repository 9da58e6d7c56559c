"""Where steps begin and end in a JAX profile that marks none: by calls of compiled functions."""

from __future__ import annotations

import pytest
from facts import of_events, us, warning_codes

from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def called(text: str, *more: str) -> Trace:
    """Calls on the main thread, drawn as `0 10 update, 40 50 update`, and further lines."""
    words = [part.split() for part in text.split(",")]
    lines = [f"main | {a} {b} | PjitFunction({name}) | cat=runtime" for a, b, name in words]
    return find_steps(link_launches(drawn_trace("\n".join([*lines, *more]))))


def steps(trace: Trace) -> list[tuple[object, ...]]:
    return us(trace, "steps", "start_ns", "end_ns")


def work(function: str, *spans: tuple[int, int], track: str = "pool") -> list[str]:
    """What the program of a function does, on another thread."""
    return [f"{track} | {a} {b} | dot | scope=jit({function})/dot_general" for a, b in spans]


@pytest.mark.parametrize("call", ["PjitFunction", "JaxPmapFunction"])
def test_a_step_lasts_from_one_call_of_the_function_to_the_next(call: str) -> None:
    calls = [f"main | {a} {a + 10} | {call}(update) | cat=runtime" for a in (0, 40, 80, 120)]
    trace = find_steps(link_launches(drawn_trace("\n".join(calls))))
    assert steps(trace) == [(0, 40), (40, 80), (80, 120)]
    assert set(trace["steps"].text("evidence")) == {"compiled_call"}
    assert warning_codes(trace) == {"steps_inferred": 1}


def test_a_last_turn_that_is_as_long_as_the_others_is_a_step() -> None:
    printing = "main | 92 118 | print_loss | cat=annotation"
    trace = called("0 10 update, 40 50 update, 80 90 update", printing)
    assert steps(trace) == [(0, 40), (40, 80), (80, 118)]
    assert of_events(trace, "step")["print_loss"] == 2


def test_a_last_turn_with_what_came_after_the_loop_is_none() -> None:
    saving = "main | 92 400 | save_checkpoint | cat=annotation"
    trace = called("0 10 update, 40 50 update, 80 90 update", saving)
    assert steps(trace) == [(0, 40), (40, 80)]


def test_the_function_that_trains_is_the_one_whose_program_works_most() -> None:
    trace = called(
        "0 1 augment, 2 3 augment, 5 10 update, 40 41 augment, 42 43 augment, 45 50 update,"
        "80 81 augment, 82 83 augment, 85 90 update",
        *work("augment", (1, 2), (41, 42), (81, 82)),
        *work("update", (10, 35), (50, 75), (90, 115)),
    )
    assert steps(trace) == [(5, 45), (45, 85)]


def test_a_program_with_a_backward_pass_trains_however_much_others_work() -> None:
    """Rollouts of reinforcement learning, and augmentation on a thread of the loader."""
    gradient = [
        f"stream 7 | {a} {a + 5} | dot | scope=jit(update)/transpose(jvp(Net))/dot_general"
        for a in (55, 155, 255)
    ]
    acts = ", ".join(f"{a} {a + 9} act" for s in (0, 100, 200) for a in range(s, s + 50, 10))
    updates = "50 52 update, 150 152 update, 250 252 update"
    rolled = work("act", *((a, a + 9) for s in (0, 100, 200) for a in range(s, s + 50, 10)))
    trace = called(f"{acts}, {updates}", *rolled, *gradient)
    assert steps(trace) == [(50, 150), (150, 250)]
    loader = [f"loader | {a} {a + 40} | PjitFunction(augment) | cat=runtime" for a in (0, 50, 100, 150)]
    trace = called(updates, *loader, *gradient)
    assert trace["tracks"].text("name")[main_track(trace)] == "main"


def test_of_two_that_work_as_much_the_rarer_begins_the_step() -> None:
    """Gradients of several micro-batches add up, then all are applied."""
    turn = "{0} {1} accumulate, {2} {3} accumulate, {4} {5} apply"
    at = [",".join([turn.format(*range(s, s + 60, 10))]) for s in (0, 100, 200)]
    spans = [(s, s + 30) for s in (0, 100, 200)]
    both = work("accumulate", *spans) + work("apply", *spans, track="other")
    assert steps(called(",".join(at), *both)) == [(40, 140), (140, 240)]


def test_a_turn_of_several_calls_begins_where_the_loop_has_paused() -> None:
    """`grads = gradients(…)`, `params = apply(…)`, loading: the pause is before `gradients`."""
    trace = called(
        "0 10 gradients, 12 14 apply, 50 60 gradients, 62 64 apply,100 110 gradients, 112 114 apply",
        *work("gradients", (0, 12), (50, 62), (100, 112)),
    )
    assert steps(trace) == [(0, 50), (50, 100)]


def test_a_turn_whose_beginning_or_end_was_cut_off_is_none() -> None:
    trace = called(
        "0 1 apply, 20 30 gradients, 32 34 apply, 53 63 gradients, 65 67 apply,86 110 gradients",
        *work("gradients", (20, 32), (53, 65)),
    )
    assert steps(trace) == [(20, 53), (53, 86)]


def test_a_call_within_a_call_is_part_of_it() -> None:
    inner = [f"main | {s + 2} {s + 4} | PjitFunction(clip) | cat=runtime" for s in (0, 40, 80)]
    trace = called("0 10 update, 40 50 update, 80 90 update", *inner)
    assert steps(trace) == [(0, 40), (40, 80)]


def test_the_loop_is_on_the_thread_that_calls_not_on_the_one_that_computes() -> None:
    trace = called("0 1 update, 40 41 update, 80 81 update", *work("update", (1, 39), (41, 79)))
    assert trace["tracks"].text("name")[main_track(trace)] == "main"
    assert steps(trace) == [(0, 40), (40, 80)]


def test_one_call_makes_no_loop() -> None:
    trace = called("0 1 init, 2 3 update", "main | 5 9 | save | cat=annotation")
    assert set(trace["steps"].text("evidence")) == {"whole_trace"}


def test_marks_of_a_capture_go_before_the_script_s_own() -> None:
    """A mark stands within its step's call; the step lasts from that call to the next."""
    text = """
        main |   0   0 | stepscope.step#step_num=4
        main |  90 130 | PjitFunction(update) | cat=runtime
        main |  91 129 | PjitFunction(update) | cat=runtime
        main | 120 120 | stepscope.step#step_num=5
        main | 190 230 | PjitFunction(update) | cat=runtime
        main | 220 220 | stepscope.step#step_num=6
        main | 290 330 | PjitFunction(update) | cat=runtime
        main | 320 320 | stepscope.step#step_num=7
        main | 140 150 | train#step_num=1005
        pool | 119 180 | dot                  | scope=jit(update)/dot_general
    """
    trace = find_steps(
        link_launches(drawn_trace(text, capture={"steps_recorded": [5, 6], "framework": "jax"}))
    )
    found = us(trace, "steps", "step", "start_ns", "end_ns", "evidence")
    assert found == [(5, 90, 190, "profiler_step"), (6, 190, 290, "profiler_step")]
    assert of_events(trace, "step")["dot"] == 5
    assert warning_codes(trace) == {}


def test_a_mark_in_no_call_begins_its_step_itself() -> None:
    text = """
        main |   0   0 | stepscope.step#step_num=0
        main |  90 130 | PjitFunction(update) | cat=runtime
        main | 120 120 | stepscope.step#step_num=1
    """
    trace = find_steps(link_launches(drawn_trace(text, capture={"steps_recorded": [0]})))
    assert steps(trace) == [(0, 90)]
