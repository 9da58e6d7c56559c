"""What the names of ranges, operators and frames say."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate.range_names import (
    ends_update,
    has_lines,
    is_recorded_step,
    is_step,
    is_update,
    operators,
    parse_lines,
    range_label,
    stage_of_names,
    step_number,
)
from stepscope.trace.schema import CATEGORIES, EVENTS
from stepscope.trace.table import Table, Text

CPU_OP = """
    backward     | autograd::engine::evaluate_function: AddmmBackward0, torch::autograd::AccumulateGrad
    backward     | AddmmBackward0, CompiledFunctionBackward, AccumulateGrad
    backward     | ReluGrad, Conv2DBackpropInput, FusedBatchNormGradV3, _backward_Activation
    backward     | GradNodeMatmul, xGradNode, matmul_grad dygraph, relu_grad kernel launch
    data_loading | IteratorGetNextOp::DoCompute, enumerate(DataLoader)#_SingleProcess, enumerate(keras)#x
    optimizer    | ResourceApplyAdam, ApplyGradientDescent, sgd_mom_update, lamb_update_phase1, signum_update
    optimizer    | Optimizer.step#SGD.step, stepscope.optimizer: critic
    loss         | aten::mse_loss, aten::nll_loss_nd, aten::binary_cross_entropy_with_logits, aten::kl_div
    zero_grad    | Optimizer.zero_grad#SGD.zero_grad
    none         | aten::linear_backward, aten::mm, aten::MmBackward, prim::xBackward, ScaleGrad, ApplyRotary
    none         | forward, loss, nn.Module: Net_0, PP:1F3
"""
ANNOTATION = """
    forward       | PP:1F3, PP:0F, attn(F), mlp (fwd), forward, fwd pass, stepscope.module: net, my forward 3
    backward      | PP:0B2, PP:3W, PP:1I0, attn(B), mlp(W), x(BW), y (bwd), z(dgrad), w(wgrad)
    backward      | backward, my_bwd
    backward      | EagerLocalExecute: ReluGrad
    other         | PP:2SEND_F1, PP:0RECV_B
    optimizer     | EagerLocalExecute: ApplyAdam, stepscope.optimizer: a, DeepSpeedEngine.step, step_microstep
    optimizer     | ## optimizer ##, DeepSpeedZeroOptimizer_Stage3.step
    evaluation    | stepscope.evaluation: f (a.py:3), validate, [x]test_step, evaluation loop
    checkpointing | stepscope.checkpointing: f (a.py:3), checkpoint_save, write checkpoint
    transfer      | copy_batch_to_gpu, host to device, H2D
    data_loading  | enumerate(tf.data)#x, prefetch_batch, data
    data_loading  | IteratorGetNext, EagerExecute: IteratorGetNext, EagerLocalExecute: IteratorGetNextSync
    zero_grad     | Optimizer.zero_grad#SGD, zerograd, zero_grad
    loss          | stepscope.module: CrossEntropyLoss, criterion, my loss
    none          | forward_backward, bwd then forward, AddmmBackward0, step 3 loss: 0.25, train
    none          | nn.Module: Net_0, PP:1f3, PP:0b2, PP:0recv_b, EagerLocalExecute: Relu
"""
PYTHON = """
    loss         | nn.Module: MSELoss_0, torch/nn/functional.py(9): cross_entropy
    loss         | torch/nn/functional.py(2): kl_div
    forward      | nn.Module: Net_0
    data_loading | torch/utils/data/dataloader.py(629): __next__, a.py(3): get_batch, b.py(7): _load_data
    optimizer    | torch/optim/adam.py(3): step
    zero_grad    | torch/optim/optimizer.py(9): zero_grad
    backward     | torch/_tensor.py(3): backward, torch/autograd/__init__.py(9): grad
    none         | train.py(3): step, train.py(3): backward, a.py(3): get_batch_size, forward
    none         | a.py(1): cross_entropy
"""


@pytest.mark.parametrize(
    ("category", "table"),
    [("cpu_op", CPU_OP), ("annotation", ANNOTATION), ("python", PYTHON), ("runtime", CPU_OP)],
)
def test_names_of_a_category_tell_their_stage(category: str, table: str) -> None:
    expected = {}
    for line in table.strip().splitlines():
        stage, _, texts = line.partition("|")
        for name in texts.split(","):
            expected[name.strip()] = (
                None if stage.strip() == "none" or category == "runtime" else stage.strip()
            )
    found = stage_of_names(Text.of(expected), Text.of([category] * len(expected)).recoded(CATEGORIES))
    assert {name: stage for name, stage in zip(expected, found, strict=True) if stage != expected[name]} == {}


def test_names_without_a_category_of_theirs_have_no_stage() -> None:
    name = Text.of(["forward", "AddmmBackward0", None, "forward"])
    category = Text.of(["annotation", "cpu_op", "annotation", None]).recoded(CATEGORIES)
    assert list(stage_of_names(name, category)) == ["forward", "backward", None, None]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("stepscope.evaluation: val (train.py:9)", "val"),
        ("stepscope.checkpointing: save (a.py:1)", "save"),
        ("stepscope.block: update (loss.py:3)", "update"),
        ("stepscope.optimizer: critic", "critic"),
        ("stepscope.lines: /p/a.py:3|/p/b.py:7", "b.py:7"),
        ("stepscope.lines: C:\\p\\b.py:7", "b.py:7"),
        ("Optimizer.step#SGD.step", "SGD.step"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "enumerate(DataLoader)"),
        ("## forward ##", "forward"),
        ("# a", "# a"),
        ("aten::mm", "aten::mm"),
        ("stepscope.module: net", "stepscope.module: net"),
    ],
)
def test_a_range_is_called_what_its_name_says(name: str, label: str) -> None:
    assert range_label(name) == label


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("ProfilerStep#5", 5), ("ProfileStep#0", 0), ("train#step_num=123456789", 123456789)),
        (f"{'x' * 99}#step_num=7", 7),
        *((name, -1) for name in ("ProfilerStep#", "ProfilerStep#1234567890", "aProfilerStep#5", "train#5")),
    ],
)
def test_a_mark_of_a_step_has_its_number(name: str, number: int) -> None:
    assert (is_step(name), step_number(name)) == (number >= 0, number)


def test_marks_of_our_recorder_and_of_optimizers_begin_so() -> None:
    names = ["stepscope.step#3", "a stepscope.step#3", "stepscope.steps"]
    assert [is_recorded_step(name) for name in names] == [True, False, False]
    names = ["Optimizer.step#Adam.step", "## optimizer ##", "Optimizer.step", "x ## optimizer ##"]
    assert [ends_update(name) for name in names] == [True, True, False, False]


def test_operators_are_told_from_ranges_of_lines_and_those_in_place_from_others() -> None:
    names = {
        **dict.fromkeys(("aten::add_", "aten::mul_", "aten::_foreach_addcdiv_", "aten::_fused_adam_"), True),
        **dict.fromkeys(("aten::_foreach_norm", "aten::lerp_"), True),
        **dict.fromkeys(("aten::add", "aten::copy_", "aten::relu_", "stepscope.lines: /a.py:3"), False),
    }
    events = Table(EVENTS, {"name": [*names, "aten::add_"], "category": ["cpu_op"] * len(names) + ["kernel"]})
    assert is_update(events, np.arange(len(names))).tolist() == [*names.values()]
    assert operators(events).tolist() == [not has_lines(name) for name in names] + [False]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("stepscope.lines: /a.py:3|/b:c.py:7", (("/a.py", 3), ("/b:c.py", 7))),
        ("stepscope.lines: /a.py:1234567890", (("/a.py", 123456789),)),
        ("stepscope.lines: a|b:|c:x|/d.py:0", (("/d.py", 0),)),
        ("stepscope.lines: ", ()),
    ],
)
def test_lines_of_a_range_are_files_and_numbers(name: str, lines: tuple[tuple[str, int], ...]) -> None:
    assert parse_lines(name) == lines
