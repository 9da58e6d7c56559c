"""Scopes of compiled programs: their parts, rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate.jax import scopes
from stepscope.facts.annotate.jax.scopes import operation_name, primitives, programs, scope_of, scopes_of
from stepscope.facts.annotate.jax.stages import hides_transformations
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text

SCOPES = [
    ("jit(f)/add", "f", None, False, "", "add", ""),
    ("jit(f)/jvp(Net)/Dense_0/dot_general", "f", "forward", False, "Net Dense_0", "dot_general", ""),
    (
        "jit(f)/transpose(jvp(Net))/Dense_0/dot_general",
        "f",
        "backward",
        False,
        "Net Dense_0",
        "dot_general",
        "",
    ),
    ("pmap(f)/pjit(g)/jvp()/mul", "f", "forward", False, "", "mul", ""),
    ("jit(f)/jvp(vmap())/while/body/closed_call/tanh", "f", "forward", False, "", "tanh", "vmap scan"),
    ("jit(f)/while/body/tanh", "f", None, False, "", "tanh", "while"),
    ("jit(f)/cond/branch_1_fun/tanh", "f", None, False, "", "tanh", "cond"),
    (
        "jit(f)/transpose(jvp(Net))/checkpoint/rematted_computation/tanh",
        *("f", "backward", True, "Net", "tanh", "remat recomputed"),
    ),
    ("jit(f)/jvp(Net)/rematted_computation/tanh", "f", "forward", False, "Net", "tanh", "recomputed"),
    ("jit(f)/shard_map/pallas_call/tanh", "f", None, False, "", "tanh", "shard_map pallas_call"),
    ("jit(f)/jvp(Net)/remat2/scan/x", "f", "forward", False, "Net", "x", "remat scan"),
    ("jit(f)/A/ab->c/f.<locals>.g/dot", "f", None, False, "A", "dot", ""),
    ("jit(f)/jvp(A)/B/transpose(jvp(A))/C/x", "f", "backward", False, "A C", "x", ""),
    ("jit(f)/compute_loss/sub", "f", "loss", False, "compute_loss", "sub", ""),
    ("jit(f)/optimizer/add", "f", "optimizer", False, "optimizer", "add", ""),
    ("jit(f)/backward/add", "f", "backward", False, "backward", "add", ""),
    ("jit(f)/backward_rnn/add", "f", None, False, "backward_rnn", "add", ""),
    ("jit(f)/jvp(bwd_pass)/add", "f", "forward", False, "bwd_pass", "add", ""),
    ("jit(f)/Net/add;jit(f)/Other/mul", "f", None, False, "Net", "add", ""),
    ("jit(f)/jvp(Net)/(A/add:A/mul)", "f", "forward", False, "Net A", "add", ""),
    ("jit(f)/jvp(Net)/(A/add:B/mul)", "f", "forward", False, "Net", "add", ""),
    ("add", "", None, False, "", "add", ""),
    ("gradient_tape/model/dense/MatMul/MatMul_1", "", "backward", False, "model dense", "MatMul_1", ""),
    ("adam/Sub_2", "", "optimizer", False, "adam", "Sub_2", ""),
    ("PartitionedCall_1/model/dense/Relu", "", None, False, "model dense", "Relu", ""),
    ("mean_squared_error/Mean", "", "loss", False, "mean_squared_error", "Mean", ""),
    ("model/dense/Relu", "", None, False, "model dense", "Relu", ""),
]


@pytest.mark.parametrize(("text", "program", "stage", "again", "names", "primitive", "inside"), SCOPES)
def test_a_scope_has_its_parts(
    text: str, program: str, stage: str | None, again: bool, names: str, primitive: str, inside: str
) -> None:
    found = scope_of(text)
    assert (found.program, found.stage, found.recompute, found.primitive) == (
        program,
        stage,
        again,
        primitive,
    )
    assert (" ".join(found.modules), " ".join(found.inside)) == (names, inside)
    assert found.innermost == (names.split()[-1] if names else "")


def test_what_is_named_a_loss_need_not_be_one() -> None:
    assert scope_of("jit(f)/jvp(loss)/add").stage == "loss"
    assert scope_of("jit(f)/jvp(loss)/add", has_loss=False).stage == "forward"
    texts = [
        *("jit(f)/jvp(loss)/Net/dot_general", "jit(f)/jvp(loss)/sub"),  # it calls the model
        *("jit(g)/jvp(Net)/dot_general", "jit(g)/jvp(loss)/dot_general"),
        *("jit(h)/jvp(loss)/dot_general", "jit(h)/jvp(loss)/sub"),
    ]
    assert [scope.stage for scope in scopes_of(texts)] == [
        *("forward", "loss", "forward", "loss"),
        *("forward", "forward"),
    ]
    assert list(primitives(Text.of([*texts[:2], None]))) == ["dot_general", "sub", None]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gradients_1/model/dense/MatMul_grad/MatMul", ("backward", ("model", "dense"), "MatMul")),
        ("gradient_tape/model/dense/x/y", ("backward", ("model", "dense", "x"), "y")),
        ("StatefulPartitionedCall/StatefulPartitionedCall_2/dense/Relu", (None, ("dense",), "Relu")),
        ("AdamW/x", ("optimizer", ("AdamW",), "x")),
        ("loss_scale_optimizer_1/x", ("optimizer", ("loss_scale_optimizer_1",), "x")),
        ("my_loss/x", ("loss", ("my_loss",), "x")),
        ("categorical_crossentropy/x", ("loss", ("categorical_crossentropy",), "x")),
        *((text, None) for text in ("dense/Relu", "Relu", "jit(f)/adam/x", "glossary/x", "adamant/x")),
    ],
)
def test_names_of_tensorflow_have_a_form_of_their_own(text: str, name: tuple[Any, ...] | None) -> None:
    assert operation_name(text) == name


def test_gradients_tell_layers_and_events_their_programs() -> None:
    texts = ["gradient_tape/a/b/X/Y", "gradients/c/X/Y", "adam/x", "PartitionedCall/d/e/F"]
    assert scopes.layers_with_gradients(texts) == {"a", "c"}
    events = drawn_trace("""
        a | 0 1 | x | scope=jit(f)/x corr=1
        a | 2 3 | x | scope=jit(g)/x corr=2
        a | 4 5 | x | scope=jit(f)/y corr=3
        a | 6 7 | x | corr=5
        a | 8 9 | x | corr=6
    """).events
    found = programs(events, np.arange(5)).tolist()
    assert found[0] == found[2]
    assert len({*found}) == 4
    assert found[4] - found[3] == 1
    assert scopes.loads_next_batch("IteratorGetNextOp::DoCompute")
    assert not scopes.loads_next_batch("aIteratorGetNextOp::DoCompute")


@pytest.mark.parametrize(
    ("texts", "hides"),
    [
        (["jit(f)/jit(main)/dot"], True),
        (["jit(f)/jit(main)/dot", "jit(f)/jit(main)/jvp(Net)/dot"], False),
        (["jit(f)/jit(main)/Net/dot"], False),
        (["jit(f)/dot"], False),
        ([None, ""], False),
    ],
)
def test_old_scopes_may_hide_what_is_differentiated(texts: list[str | None], hides: bool) -> None:
    assert hides_transformations(texts) is hides
