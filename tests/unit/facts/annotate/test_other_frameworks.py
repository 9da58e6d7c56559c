"""Stages of TensorFlow and MXNet, whose gradients and updates have other names than PyTorch's."""

from __future__ import annotations

import pytest
from facts import of_events

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.facts.annotate.range_names import stage_of_names
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text


@pytest.mark.parametrize(
    ("scope", "stage", "modules"),
    [
        ("gradient_tape/net/dense/MatMul/MatMul_1", "backward", ("net", "dense")),
        ("StatefulPartitionedCall/gradient_tape/net/dense/ReluGrad", "backward", ("net", "dense")),
        ("gradients/net/dense/MatMul_grad/MatMul", "backward", ("net", "dense")),
        ("StatefulPartitionedCall/adam_1/Sub_2", "optimizer", ("adam_1",)),
        ("compile_loss/mse/Mean", "loss", ("compile_loss", "mse")),
        ("StatefulPartitionedCall/net/dense/Relu", None, ("net", "dense")),
        ("net/dense/Relu", None, ("net", "dense")),
    ],
)
def test_names_of_tensorflow(scope: str, stage: str | None, modules: tuple[str, ...]) -> None:
    found = scope_of(scope)
    assert (found.stage, found.modules) == (stage, modules)


def test_while_a_call_of_tensorflow_waits_the_threads_that_run_its_operations_decide() -> None:
    """A step of Keras: the call of the whole step, and its operations on another thread."""
    trace = annotate(
        drawn_trace("""
        main    |  0 100 | Profiled batch#step_num=1
        main    |  5  95 | EagerLocalExecute: __inference_step | cat=annotation
        tf.data | 10  40 | IteratorGetNextOp::DoCompute | cat=cpu_op
        worker  | 40  50 | MatMul | scope=net/dense/MatMul
        worker  | 50  52 | Mean   | scope=accuracy/Mean
        worker  | 52  72 | Mul    | scope=gradient_tape/net/dense/MatMul/MatMul
        worker  | 72  90 | Sub    | scope=adam/Sub_2
    """)
    )
    assert of_events(trace, "stage") | {"Profiled batch#step_num=1": None} == {
        "Profiled batch#step_num=1": None,
        "EagerLocalExecute: __inference_step": "other",
        "IteratorGetNextOp::DoCompute": "data_loading",
        "MatMul": "forward",
        "Mean": "other",
        "Mul": "backward",
        "Sub": "optimizer",
    }
    runs = trace["stages"]
    lengths: dict[str | None, int] = {}
    for stage, start, end in zip(
        runs.text("stage"), runs["start_ns"].tolist(), runs["end_ns"].tolist(), strict=True
    ):
        lengths[stage] = lengths.get(stage, 0) + (end - start) // 1000
    assert lengths == {"data_loading": 30, "forward": 10, "backward": 20, "optimizer": 18, "other": 22}


def test_eager_steps_of_tensorflow_train_if_they_compute_gradients() -> None:
    trace = annotate(
        drawn_trace("""
        main |  0 100 | train#step_num=1
        main |  5  20 | EagerLocalExecute: MatMul   | cat=annotation
        main | 20  25 | EagerLocalExecute: Relu     | cat=annotation
        main | 25  30 | EagerLocalExecute: ReluGrad | cat=annotation
        main | 30  50 | EagerLocalExecute: Transpose | cat=annotation
        main | 50  55 | EagerLocalExecute: BiasAddGrad | cat=annotation
        main | 55  75 | EagerLocalExecute: ResourceApplyAdam | cat=annotation
    """)
    )
    found = of_events(trace, "stage")
    assert [
        found[f"EagerLocalExecute: {name}"]
        for name in ("MatMul", "Relu", "ReluGrad", "Transpose", "BiasAddGrad", "ResourceApplyAdam")
    ] == ["forward", "forward", "backward", "backward", "backward", "optimizer"]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("_backward_FullyConnected", "backward"),
        ("sgd_mom_update", "optimizer"),
        ("multi_mp_sgd_mom_update", "optimizer"),
        ("FullyConnected", None),
        ("FusedBatchNormGradV3", "backward"),
        ("Conv2DBackpropFilter", "backward"),
        ("ResourceApplyGradientDescent", "optimizer"),
        ("matmul_grad dygraph", "backward"),
        ("Global_MatmulGradNode", "backward"),
        ("aten::_foreach_addcdiv_", None),
        ("clip_grad_norm_", None),
        # Functions that users of PyTorch write (torch.autograd.Function):
        ("ScaleGrad", None),
        ("GradientReversal", None),
        ("ApplyRotaryEmb", None),
        ("ApplyMask", None),
        ("ApplyAdapter", None),
    ],
)
def test_gradients_and_updates(name: str, stage: str | None) -> None:
    assert stage_of_names(Text.of([name]), Text.of(["cpu_op"]))[0] == stage
