"""Stages of compiled operations by their roles in their program."""

from __future__ import annotations

import numpy as np
import pytest
from facts import of_events
from traced_steps import traced

from stepscope.facts.annotate import annotate
from stepscope.trace.schema import KERNEL_KINDS, ORIGINS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

STEP = "train.py:20 step"
LOSS = "train.py:3 loss"
OPERATIONS = [
    ("dot.1", "jit(step)/while/body/jvp()/dot_general", [STEP, LOSS]),
    ("dot.2", "jit(step)/while/body/transpose(jvp())/dot_general", [STEP, LOSS]),
    ("free", "jit(step)/while/body/mul", [STEP]),
    ("dot.3", "jit(step)/dot_general", [STEP, LOSS]),
    ("mean", "jit(step)/mean", [STEP]),
]


def with_role(trace: Trace, roles: dict[str, str]) -> Trace:
    """The trace with roles of operations, and with products where their names say so."""
    names = trace.events.text("name")
    kinds = np.where(names.where(lambda name: name.startswith("dot")), KERNEL_KINDS.index("gemm"), -1)
    origins, of_row = trace["origins"], [""] * len(trace["origins"])
    for name, row in zip(names, trace.events["origin"].tolist(), strict=True):
        of_row[row] = roles.get(name or "", of_row[row]) if row >= 0 else of_row[row]
    columns = {
        "first": origins["first"],
        "scope": origins.text("scope"),
        "frame": origins["frame"],
        "share": origins["share"],
    }
    table = Table(ORIGINS, {**columns, "role": Text.of(role or None for role in of_row)})
    return trace.with_table(table).with_events(kind=Text(kinds.astype(np.int8), KERNEL_KINDS))


def stage(roles: dict[str, str], name: str) -> str:
    return of_events(annotate(with_role(traced(*OPERATIONS), roles)), "stage")[name]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("data", "data_loading"),
        ("constant", "other"),
        ("pass", "forward"),
        ("update", "optimizer"),
        ("gradient", "backward"),
        ("result", "other"),
    ],
)
def test_the_role_decides_where_jax_marks_nothing(role: str, expected: str) -> None:
    """By position all of these would be of the optimizer."""
    assert stage({"free": role}, "free") == expected


def test_without_a_role_the_position_decides() -> None:
    assert stage({}, "free") == "optimizer"


@pytest.mark.parametrize(
    ("role", "expected"), [("update", "evaluation"), ("result", "evaluation"), ("data", "forward")]
)
def test_what_is_trained_evaluates_or_makes_targets(role: str, expected: str) -> None:
    """Parameters that were updated are made from gradients, so are results of an evaluation."""
    assert stage({"dot.3": role, "mean": "result"}, "dot.3") == expected


def test_an_update_in_the_same_function_as_the_step_is_no_evaluation() -> None:
    assert stage({"free": "update"}, "free") == "optimizer"
