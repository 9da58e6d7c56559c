"""Lines of events that no frame has, by the samples of a capture: outside of modules, and in them."""

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


def sampled(text: str) -> Trace:
    trace = drawn_trace(text)
    samples = {
        "time_ns": np.array([1000 * at for at in SAMPLES], np.int64),
        "track": np.zeros(len(SAMPLES), np.int64),
        "source": np.full(len(SAMPLES), -1),
        "name": Text.of(SAMPLES.values()),
        "category": Text.of([CATEGORY] * len(SAMPLES)),
        "phase": Text.constant("i", len(SAMPLES)),
    }
    return annotate(trace.with_table(Table(INSTANTS, samples)))


def found_place(name: str, text: str = STEP) -> Place:
    trace = sampled(text)
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


def test_where_samples_saw_lines_no_stacks_are_to_be_recorded() -> None:
    """Also where none of the lines has half of the stall."""
    [stall] = alone("cpu_latency", sampled("main | 0 1000 | ProfilerStep#0\nmain | 100 300 | aten::item"))
    assert "--stack" not in stall.advice


def test_a_module_that_runs_only_python_has_the_line_that_most_samples_saw() -> None:
    """Its name alone does not show which of its functions that is."""
    [stall] = alone("cpu_latency", sampled(MODULE.replace("100 700", "60 80")))
    assert "Mostly in net, x/train.py:7 in log, called in line 64." in stall.what
