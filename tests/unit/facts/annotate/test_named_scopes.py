"""What the named scopes of compiled operations tell."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate.jax.scopes import Scope, scope_of

STEP = "jit(step)/"


@pytest.mark.parametrize(
    ("text", "stage", "modules", "primitive"),
    [
        (STEP + "jvp(CNN)/Dense_0/dot_general", "forward", ("CNN", "Dense_0"), "dot_general"),
        (STEP + "transpose(jvp(CNN))/Dense_0/dot_general", "backward", ("CNN", "Dense_0"), "dot_general"),
        ("pmap(step)/jvp(CNN)/Dense_0/dot_general", "forward", ("CNN", "Dense_0"), "dot_general"),
        (STEP + "jvp()/add", "forward", (), "add"),
        (STEP + "transpose(jvp())/mul", "backward", (), "mul"),
        (STEP + "transpose", None, (), "transpose"),
        (STEP + "jit(main)/jvp(vmap(CNN))/jit(relu)/max", "forward", ("CNN",), "max"),
        (STEP + "jvp(CNN)/while/body/closed_call/Block/add", "forward", ("CNN", "Block"), "add"),
        (STEP + "jvp(Attention)/bij,bjk->bik/dot_general", "forward", ("Attention",), "dot_general"),
        (STEP + "jvp(CNN)/compute_loss/reduce_sum", "loss", ("CNN", "compute_loss"), "reduce_sum"),
        (STEP + "transpose(jvp(CNN))/compute_loss/mul", "backward", ("CNN", "compute_loss"), "mul"),
        (STEP + "jvp()/jit(_split)/make_step.<locals>.loss/xor", "forward", (), "xor"),
        (STEP + "jvp(Net)/backward_rnn/mul", "forward", ("Net", "backward_rnn"), "mul"),
        (STEP + "Net/backward_rnn/mul", None, ("Net", "backward_rnn"), "mul"),
        (STEP + "backward/mul", "backward", ("backward",), "mul"),
        (STEP + "optimizer/mul", "optimizer", ("optimizer",), "mul"),
        (STEP + "mul", None, (), "mul"),
        ("model/dense/MatMul", None, ("model", "dense"), "MatMul"),
        ("add", None, (), "add"),
        ("", None, (), ""),
    ],
)
def test_scopes(text: str, stage: str | None, modules: tuple[str, ...], primitive: str) -> None:
    assert scope_of(text)[1:5] == (stage, False, modules, primitive)


def test_the_program_is_the_outermost_function() -> None:
    assert scope_of("jit(train_step)/jit(main)/jvp(CNN)/add").program == "train_step"
    assert scope_of("pjit(step)/add").program == "step"
    assert scope_of("model/add").program == ""


def test_forward_that_is_done_again_in_backward() -> None:
    text = "jit(step)/transpose(jvp(Net))/jvp(Net)/checkpoint/rematted_computation/Block_1/sin"
    expected = Scope("step", "backward", True, ("Net", "Block_1"), "sin", ("remat", "recomputed"))
    assert scope_of(text) == expected
    text = text.replace("rematted_computation/", "")
    expected = Scope("step", "backward", False, ("Net", "Block_1"), "sin", ("remat",))
    assert scope_of(text) == expected


@pytest.mark.parametrize("text", ["(" * 10_000, "a(" * 10_000 + ")" * 10_000, "a/" * 100_000, "/"])
def test_whatever_it_is_it_is_told_apart_in_bounded_depth(text: str) -> None:
    assert len(scope_of(text).modules) <= 64


def test_of_operations_that_were_merged_the_first_scope_counts() -> None:
    merged = "jit(step)/transpose(jvp(CNN))/mul;jit(step)/transpose(jvp(CNN))/broadcast_in_dim"
    assert scope_of(merged) == scope_of("jit(step)/transpose(jvp(CNN))/mul")


def test_merged_collectives_belong_to_the_modules_that_they_share() -> None:
    """XLA combines all-reduces of many gradients, and writes what their scopes do not share."""
    gradients = "transpose(jvp(Net))/Dense_0/dot_general:transpose(jvp(Net))/Dense_1/reduce_sum"
    scope = scope_of(f"jit(step)/({gradients}:jvp()/reduce_sum)")
    assert scope[:5] == ("step", "backward", False, ("Net",), "dot_general")
    one = scope_of("jit(f)/(mul:Dense_0/add:jvp()/sub)")  # only one of them is in a module
    assert one[:5] == ("f", "forward", False, ("Dense_0",), "mul")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("jit(step)/jvp()/while/body/closed_call/tanh", ("scan",)),
        ("jit(step)/jvp()/while/body/add", ("while",)),
        ("jit(step)/while/body/closed_call/while/body/mul", ("scan", "while")),
        ("jit(step)/cond/branch_1_fun/sin", ("cond",)),
        ("jit(step)/jvp(vmap())/mul", ("vmap",)),
        ("jit(step)/transpose(jvp(vmap(Net)))/mul", ("vmap",)),
        ("jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/dot_general", ("scan", "remat")),
        ("jit(step)/transpose(jvp())/checkpoint/rematted_computation/tanh", ("remat", "recomputed")),
        ("jit(step)/jvp()/shard_map/psum", ("shard_map",)),
        ("jit(step)/jvp(Net)/Dense_0/dot_general", ()),
    ],
)
def test_what_encloses_an_operation(text: str, inside: tuple[str, ...]) -> None:
    assert scope_of(text).inside == inside


def test_sums_of_gradients_that_xla_merged_are_backward() -> None:
    """`pmean` of a gradient that shard_map has summed already."""
    found = scope_of("jit(step)/shard_map/(psum_invariant:transpose(jvp())/psum_invariant)")
    assert (found.stage, found.primitive) == ("backward", "psum_invariant")
