"""Validation, rollouts and samples: calls of a model that is trained, without gradients."""

from __future__ import annotations

from facts import of_events

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

TRAINING = """
    main     | 300 340 | stepscope.module:
    main     | 301 339 | aten::linear            | seq=5
    main     | 341 345 | aten::nll_loss          | seq=6
    autograd | 350 360 | NllLossBackward0        | seq=6 fwd=1
    autograd | 360 380 | AddmmBackward0          | seq=5 fwd=1
    main     | 385 400 | Optimizer.step#SGD.step
"""


def staged(text: str) -> Trace:
    return annotate(drawn_trace("main | 0 400 | ProfilerStep#1" + text + TRAINING))


def cpu_ns(trace: Trace) -> dict[str, int]:
    runs = trace["stages"]
    names = runs.text("stage")
    return {stage: int(runs["cpu_ns"][names.mask(stage)].sum()) for stage in ("forward", "loss", "other")}


def test_a_validation_before_the_step_is_other() -> None:
    trace = staged("""
        main | 100 150 | stepscope.module:
        main | 101 149 | aten::addmm
        main | 160 170 | aten::cross_entropy_loss
        main | 180 230 | stepscope.module:
        main | 181 229 | aten::matmul
        main | 240 250 | aten::argmax
    """)
    stages = of_events(trace, "stage")
    aside = ("addmm", "cross_entropy_loss", "matmul", "argmax")
    assert {stages[f"aten::{name}"] for name in aside} == {"other"}
    assert (stages["aten::linear"], stages["aten::nll_loss"]) == ("forward", "loss")
    assert cpu_ns(trace)["forward"] == 40_000  # the call that trains


def test_an_environment_between_calls_of_the_policy_is_other() -> None:
    trace = staged("""
        main |  10  20 | stepscope.module:
        main |  90  95 | aten::tensor
        main | 100 110 | stepscope.module:
    """)
    assert of_events(trace, "stage")["aten::tensor"] == "other"
    assert cpu_ns(trace)["other"] >= 290_000


def test_a_model_that_never_has_gradients_is_part_of_forward() -> None:
    """A teacher, whose answer the loss needs."""
    trace = staged("""
        main | 100 150 | stepscope.module: teacher
        main | 101 149 | aten::addmm
    """)
    assert of_events(trace, "stage")["aten::addmm"] == "forward"


def test_a_call_that_is_recorded_and_detached_is_part_of_forward() -> None:
    """The generator, in the turn that trains the critic."""
    trace = staged("""
        main | 100 150 | stepscope.module:
        main | 101 149 | aten::addmm        | seq=3
    """)
    assert of_events(trace, "stage")["aten::addmm"] == "forward"


def test_calls_of_a_module_are_those_that_train_it() -> None:
    trace = annotate(
        drawn_trace(
            "main | 0 400 | ProfilerStep#1\nmain | 100 150 | stepscope.module:" + TRAINING,
            model={"name": "net", "class": "Net"},
        )
    )
    assert trace["modules"]["calls"].tolist() == [1]
