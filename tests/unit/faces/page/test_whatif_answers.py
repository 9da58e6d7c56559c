"""What the page is told of what-ifs: the changes, and the answer for those switched on."""

from __future__ import annotations

import msgspec
import pytest
from serving import ask, opened

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError, StepscopeError
from stepscope.faces.page.trace_view import TraceView
from stepscope.graph import build_graph
from stepscope.models.whatif import CHANGES
from stepscope.models.whatif.best import find_best

ONE = """
    main | 0 100 | ProfilerStep#1
    main | 0  40 | aten::mm
    main | 50 90 | aten::relu
"""
TWO = ONE + "\n main | 100 300 | ProfilerStep#2\n main | 110 290 | aten::mm"


@pytest.fixture
def trace() -> TraceView:
    return opened(ONE)


def test_every_change_is_listed_with_why_it_does_not_apply(trace: TraceView) -> None:
    told = ask(trace, "changes")["changes"]
    assert [one["name"] for one in told] == list(CHANGES)
    (bandwidth,) = [one for one in told if one["name"] == "bandwidth"]
    assert (bandwidth["applies"], bandwidth["reason"]) == (False, "these steps have no collectives")
    assert bandwidth["parameters"][0]["default"] == 2.0
    assert json_bytes(told)


def test_the_changes_of_all_lines_apply_together_in_their_order(trace: TraceView) -> None:
    mm, relu = (f"scale:select=name=aten::{name},factor=0.5" for name in ("mm", "relu"))
    predicted = {}
    for changes in (mm, relu, f"{relu}\n{mm}"):
        told = ask(trace, "whatif", changes=changes)["answer"]
        assert list(told["changes"]) == changes.split("\n")
        predicted[changes] = told["predicted_step_ms"]
    assert list(predicted.values()) == pytest.approx([0.08, 0.08, 0.06])


def test_without_a_change_the_replay_is_told(trace: TraceView) -> None:
    told = ask(trace, "whatif")
    assert told["answer"]["speedup"] == 1


def test_one_step_of_several() -> None:
    trace = opened(TWO)
    of = [ask(trace, "whatif", step=step)["answer"]["measured_step_ms"] for step in (1, 2)]
    assert of == pytest.approx([0.1, 0.2])
    with pytest.raises(StepscopeError):
        ask(trace, "whatif", step=7)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("bandwidth", "bandwidth: these steps have no collectives"),
        ("faster", "there is no change 'faster'; did you mean faster_gpu?"),
        ("scale:select=kind=x,factor=1", "expected a kind of "),
    ],
)
def test_what_does_not_apply_has_its_reason_and_no_answer(
    trace: TraceView, changes: str, reason: str
) -> None:
    told = ask(trace, "whatif", changes=changes)
    assert told["answer"] is None
    assert told["reason"].startswith(reason)


def test_a_question_that_is_wrong_is_refused(trace: TraceView) -> None:
    with pytest.raises(ServeError, match="expected step to be a whole number"):
        ask(trace, "whatif", step="all")


def test_the_best_changes_are_those_that_the_command_finds(trace: TraceView) -> None:
    found = find_best(build_graph(trace.trace))
    assert ask(trace, "best")["answer"] == msgspec.to_builtins(found)
    assert ask(trace, "best", to="0.05")["answer"]["reached"] is False
    assert ask(trace, "best", fits="a little")["answer"] is None
    with pytest.raises(ServeError):
        ask(trace, "best", to="soon")
