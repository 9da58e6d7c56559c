"""Lines of events that no frame has, by the samples of a capture: outside of modules, and in them."""

from typing import Any

import numpy as np
import pytest
from drawn_findings import alone

from stepscope.analyze.finding import Place, callers
from stepscope.analyze.source_places import PlaceFinder, most_sampled
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import samples_of
from stepscope.read.recorded.members_json import CATEGORY
from stepscope.testing import drawn_trace
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import INSTANTS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

STEP = """
    main | 0 1000 | ProfilerStep#0
    main | 100 700 | aten::item
    main | 800 900 | aten::mul
"""
MODULE = """
    main | 0 1000 | ProfilerStep#0
    main | 50 720 | stepscope.module: net
    main | 100 700 | aten::sort | seq=1
    main | 750 760 | aten::sum | seq=2
    main | 840 860 | autograd::engine::evaluate_function: SortBackward0 | seq=1 fwd=1
    main | 870 880 | Optimizer.step#SGD.step
"""
SAMPLES = {
    150: "log (/x/train.py:7) ← main (/x/train.py:64)",
    400: "log (/x/train.py:7) ← main (/x/train.py:64)",
    650: "log (/x/train.py:9)",
    850: "<module> (/x/train.py:20)",
}


def sampled(text: str, seen: dict[int, str] = SAMPLES, **metadata: Any) -> Trace:
    trace = drawn_trace(text, **metadata)
    samples = {
        "time_ns": np.array([1000 * at for at in seen], np.int64),
        "track": np.zeros(len(seen), np.int64),
        "source": np.full(len(seen), -1),
        "name": Text.of(seen.values()),
        "category": Text.of([CATEGORY] * len(seen)),
        "phase": Text.constant("i", len(seen)),
    }
    return annotate(trace.with_table(Table(INSTANTS, samples)))


def found_place(name: str, text: str = STEP, seen: dict[int, str] = SAMPLES) -> Place:
    trace = sampled(text, seen)
    [found] = PlaceFinder(trace).of(np.flatnonzero(trace.events.text("name").mask(name)), 1)
    return found


def place(name: str, text: str = STEP) -> tuple[str, int | None, str]:
    found = found_place(name, text)
    return found.file, found.line, found.function


def test_a_wait_outside_of_modules_has_the_line_that_most_samples_saw() -> None:
    assert place("aten::item") == ("/x/train.py", 7, "log")


def test_with_the_line_of_the_loop_that_leads_to_it() -> None:
    """The user can change either."""
    found = found_place("aten::item")
    assert found.short + callers(found.called, found.file) == "x/train.py:7 in log, called in line 64"


def test_a_line_that_calls_twice_in_a_row_is_named_once() -> None:
    """A comprehension is a function of its own, on the line that calls it."""
    called = ("embed.<locals>.<listcomp> (/x/net.py:35)", "embed (/x/net.py:35)", "main (/x/net.py:44)")
    assert callers(called, "/x/net.py") == ", called in line 35, from line 44"


LOG = ("/x/train.py", 7, "log", ("main (/x/train.py:64)",))


@pytest.mark.parametrize(
    ("until", "part", "place"),
    [
        (700, 0.5, LOG),  # of two lines of a function the one that more saw
        (900, 0.7, LOG),
        (900, 0.8, None),
    ],
)
def test_a_gap_has_the_function_that_most_samples_in_it_saw(
    until: int, part: float, place: tuple[str, int, str, tuple[str, ...]] | None
) -> None:
    spans = Intervals([0], [1000 * until])
    assert most_sampled(samples_of(sampled(STEP)), spans, 3, part) == place


def test_one_sample_is_not_enough() -> None:
    assert place("aten::mul") == ("", None, "")


def test_the_python_next_to_short_calls_has_their_line() -> None:
    """Two samples within 20 us of the calls."""
    text = STEP.replace("100 700 ", "155 156 ") + "main | 390 391 | aten::item"
    assert place("aten::item", text) == ("/x/train.py", 7, "log")
    assert place("aten::item", text.replace("390 391", "370 371")) == ("", None, "")


def test_in_a_module_it_is_the_line_that_the_module_runs() -> None:
    assert place("aten::sort", MODULE) == ("/x/train.py", 7, "log")


def test_and_its_gradient_has_the_line_of_the_forward_pass() -> None:
    gradient = "autograd::engine::evaluate_function: SortBackward0"
    assert place(gradient, MODULE) == ("/x/train.py", 7, "log")


BACKWARD = """
    main | 0 1000  | ProfilerStep#0
    main | 20 380  | stepscope.module: net
    main | 50 100  | Scan | seq=1
    main | 110 200 | aten::mul | seq=2
    main | 210 230 | aten::sin | seq=3
    main | 400 490 | autograd::engine::evaluate_function: SinBackward0 | seq=3 fwd=1
    main | 410 480 | aten::sort
    main | 485 489 | SinBackward0 | seq=3 fwd=1
    main | 500 550 | autograd::engine::evaluate_function: MulBackward0 | seq=2 fwd=1
    main | 501 520 | MulBackward0 | seq=2 fwd=1
    main | 502 519 | aten::dot
    main | 530 535 | aten::topk
    main | 536 540 | aten::sum
    main | 600 800 | autograd::engine::evaluate_function: ScanBackward | seq=1 fwd=1
    main | 610 790 | ScanBackward | seq=1 fwd=1
    main | 620 700 | aten::cat
    main | 750 755 | aten::cumsum
    main | 990 999 | Optimizer.step#SGD.step
"""
IN_BACKWARD = {
    **dict.fromkeys((60, 70, 80), "Scan.forward (/x/net.py:14) ← Net.forward (/x/net.py:37)"),
    **dict.fromkeys((130, 150), "Net.forward (/x/net.py:38) ← main (/x/train.py:8)"),
    **dict.fromkeys((420, 430), "hook (/x/train.py:31) ← main (/x/train.py:9)"),
    **dict.fromkeys((440, 450, 460, 505, 510, 532, 751, 752), "main (/x/train.py:9)"),
    **dict.fromkeys((640, 650), "Scan.backward (/x/net.py:25) ← main (/x/train.py:9)"),
}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("aten::sort", ("/x/train.py", 31, "hook")),
        ("aten::topk", ("", None, "")),  # in a hook, which no sample saw
        ("aten::sum", ("/x/net.py", 38, "Net.forward")),  # by autograd itself, to the shape of the input
        ("aten::dot", ("/x/net.py", 38, "Net.forward")),
        ("aten::cat", ("/x/net.py", 25, "Scan.backward")),
        ("aten::cumsum", ("", None, "")),
    ],
)
def test_what_python_calls_in_a_backward_pass_has_no_line_of_the_forward_pass(
    name: str, line: tuple[str, int | None, str]
) -> None:
    found = found_place(name, BACKWARD, IN_BACKWARD)
    assert (found.file, found.line, found.function) == line


def test_where_samples_saw_lines_no_stacks_are_to_be_recorded() -> None:
    """Also where none of the lines has half of the stall."""
    [stall] = alone("cpu_latency", sampled("main | 0 1000 | ProfilerStep#0\nmain | 100 300 | aten::item"))
    assert "--stack" not in stall.advice


def test_a_module_that_runs_only_python_has_the_line_that_most_samples_saw() -> None:
    """Its name alone does not show which of its functions that is."""
    [stall] = alone("cpu_latency", sampled(MODULE.replace("100 700", "60 80")))
    assert "Mostly in net, x/train.py:7 in log, called in line 64." in stall.what


ENV, ACT = "step (/x/env.py:3) ← play (/x/train.py:9)", "play (/x/train.py:8)"


@pytest.mark.parametrize(
    ("acts_us", "seen", "where", "advice"),
    [
        (50, {70: ENV, 90: ENV, 180: ENV, 220: ACT}, "x/env.py:3 in step, called in x/train.py:9", "Compute"),
        (150, {20: ACT, 90: ACT, 180: ENV, 220: ACT}, "x/train.py:8 in play", "Act for several"),
        (50, {70: ENV, 90: ACT, 620: ENV, 640: ENV}, "x/train.py:7 in play", "Compute"),  # after the rollout
        (50, {}, "x/train.py:7 in play", "Compute"),
    ],
)
def test_rollouts_are_at_the_line_that_takes_most_of_them(
    acts_us: int, seen: dict[int, str], where: str, advice: str
) -> None:
    """Two calls of the model, 200 us apart; between them environments compute."""
    text = "main | 0 1000 | ProfilerStep#0\nmain | 810 900 | Optimizer.step#SGD.step"
    text += (
        "\nmain | 300 600 | aten::mm | seq=1\nmain | 600 800 | autograd::engine::evaluate_function: A | fwd=1"
    )
    for at in (10, 210):
        text += f"\nmain | {at} {at + acts_us} | stepscope.block: play (/x/train.py:7)"
        text += f"\nmain | {at + 1} {at + 9} | aten::mm"
    place = {"function": "play", "file": "/x/train.py", "line": 7, "count": 200, "stage": "rollout", "ns": 1}
    times = {"training_steps": 500, "rollout": 500}
    facts = {"ended": True, "elapsed_ns": 1000, "steps": 100, "stages_ns": times, "places": [place]}
    [finding] = alone("rollouts", sampled(text, seen, capture={"run_shares": facts | {"data_loading_ns": 0}}))
    assert finding.what == f"Rollouts or generation take 50% of the run after start-up. Most is in {where}."
    assert finding.advice.startswith(advice)
