"""Compiled evaluations belong to the modules that training has shown."""

from __future__ import annotations

import pytest
from facts import module_of_events
from traced_steps import SITE, traced

TRAIN = ["train.py:20 step", "train.py:18 loss_of"]
LINEAR = f"{SITE}/flax/nnx/nn/linear.py:422 Linear.__call__"
NET = ["model.py:9 Net.__call__", LINEAR]
BY_CLASS = (
    ("dot.1", "jit(step)/jvp()/dot_general", [*TRAIN, *NET]),
    ("dot.2", "jit(step)/transpose(jvp())/dot_general", [*TRAIN, *NET]),
)
BY_SCOPE = (
    ("dot.1", "jit(step)/jvp(Net)/Dense_0/dot_general", TRAIN),
    ("dot.2", "jit(step)/transpose(jvp(Net))/Dense_0/dot_general", TRAIN),
)


@pytest.mark.parametrize(
    "caller",
    [["train.py:40 evaluate", TRAIN[1]], ["train.py:40 evaluate"]],
    ids=["through the loss", "from a line of its own"],
)
def test_the_classes_that_an_evaluation_calls_are_those_of_training(caller: list[str]) -> None:
    trace = traced(
        *BY_CLASS,
        ("dot.3", "jit(evaluate)/dot_general", [*caller, *NET]),
        ("mean", "jit(evaluate)/mean", ["train.py:41 evaluate"]),
    )
    found = module_of_events(trace)
    assert [found[name] for name in ("dot.1", "dot.3", "mean")] == ["Net.Linear"] * 2 + [None]
    paths = trace["modules"].text("path")
    outside = dict(zip(paths, trace["modules"]["outside_cpu_ns"].tolist(), strict=True))
    assert outside == {"Net": 10_000, "Net.Linear": 10_000}


def test_the_scopes_of_an_evaluation_are_those_of_training() -> None:
    evaluation = ("dot.3", "jit(evaluate)/Net/Dense_0/dot_general", ["train.py:40 evaluate", TRAIN[1]])
    found = module_of_events(traced(*BY_SCOPE, evaluation))
    assert found["dot.3"] == "Net.Dense_0"


def test_a_line_that_calls_another_model_is_none_of_them() -> None:
    other = ["train.py:40 evaluate", TRAIN[1], "teacher.py:3 Teacher.__call__", LINEAR]
    found = module_of_events(traced(*BY_CLASS, ("dot.3", "jit(evaluate)/dot_general", other)))
    assert found["dot.3"] is None
