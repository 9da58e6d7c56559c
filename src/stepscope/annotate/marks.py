"""Names that tell a stage of the training loop: the table that `stages` reads.

Source: HOTLINE section 4.2 (recognizable names), and the ranges that PyTorch writes itself.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

CODE = {stage: code for code, stage in enumerate(STAGES)}
MODULE_RANGE = "stepscope.module:"
MODULE_FRAME = "nn.Module: "

# (categories, pattern, stage): the first that matches counts.
_RULES = tuple(
    (categories.split(), re.compile(pattern), stage)
    for categories, pattern, stage in (
        ("cpu_op", r"^autograd::engine::evaluate_function|^torch::autograd::", "backward"),
        ("cpu_op", r"^(?!aten::|prim::)\w*Backward\d*$|^CompiledFunctionBackward|^AccumulateGrad$",
         "backward"),
        ("cpu_op", r"^aten::(\w*_loss|nll_loss\w*|binary_cross_entropy\w*|kl_div)$", "loss"),
        ("annotation cpu_op", r"^enumerate\(DataLoader\)", "data_loading"),
        ("annotation cpu_op", r"^Optimizer\.zero_grad", "zero_grad"),
        ("annotation cpu_op", r"^Optimizer\.step", "optimizer"),
        ("annotation", r"(?i)copy_batch_to|to_device|\bh2d\b|host.?to.?device", "transfer"),
        ("annotation", r"(?i)data_?load|load_batch|wait_for_batch|next_batch|fetch_batch|get_batch",
         "data_loading"),
        ("annotation", r"(?i)\bzero_?grad", "zero_grad"),
        ("annotation", r"(?i)(?<![a-z])backward(?![a-z])", "backward"),
        ("annotation", r"(?i)^(##)?\W*optim(izer)?\b|\boptimizer_?step", "optimizer"),
        ("annotation", r"(?i)(?<![a-z])(loss|criterion)(?![a-z])", "loss"),
        ("annotation", r"(?i)(?<![a-z])forward(?![a-z])", "forward"),
        ("python", r"^nn\.Module: \w*Loss(_\d+)?$", "loss"),
        ("annotation", r"(?i)^stepscope\.module:.*(loss|criterion)\w*$", "loss"),
        ("annotation", r"^stepscope\.module:", "forward"),
        ("python", r"^nn\.Module: ", "forward"),
        ("python", r"torch/utils/data/dataloader\.py\(\d+\): __next__$", "data_loading"),
        ("python", r"(?i)\.py\(\d+\): _*((data_?)?load_batch|(next|get|fetch)_batch|load_data)\w*$",
         "data_loading"),
        ("python", r"torch/optim/\w+\.py\(\d+\): zero_grad$", "zero_grad"),
        ("python", r"torch/optim/\w+\.py\(\d+\): step$", "optimizer"),
        ("python", r"torch/(_tensor|autograd/__init__)\.py\(\d+\): (backward|grad)$", "backward"),
        ("python", r"torch/nn/functional\.py\(\d+\): \w*(loss|cross_entropy|kl_div)\w*$", "loss"),
    )
)  # fmt: skip

_RANGE_RULES = [(pattern, stage) for kinds, pattern, stage in _RULES if "annotation" in kinds]
# A step as torch.profiler marks it, and as JAX's StepTraceAnnotation does.
_STEP = re.compile(r"(?:^ProfilerStep#|#step_num=)(\d{1,9})$")
_RECORDED = "stepscope.step#"


def is_step(name: str) -> bool:
    """Whether a range of this name is one step.

    Example:
        >>> [is_step(name) for name in ("ProfilerStep#5", "train#step_num=7", "train")]
        [True, True, False]
    """
    return _STEP.search(name) is not None


def is_recorded_step(name: str) -> bool:
    """Whether this is the mark with which a capture of JAX begins a step."""
    return name.startswith(_RECORDED)


def step_number(name: str) -> int:
    """The number of the step that a range of such a name is."""
    found = _STEP.search(name)
    return int(found[1]) if found else -1


def stage_of_names(name: Text, category: Text) -> Text:
    """The stage that an event's own name tells, by its category; null where it tells none.

    Example:
        >>> stage_of_names(Text.of(["Optimizer.step#SGD.step"]), Text.of(["annotation"]))[0]
        'optimizer'
    """
    codes = category.codes.astype("int8") * 0 - 1
    for kind in ("cpu_op", "annotation", "python"):
        rules = [(pattern, stage) for kinds, pattern, stage in _RULES if kind in kinds]
        mask = category.mask(kind)
        names = name.take(mask).compact()
        told = names.map(lambda text, rules=rules: _first(rules, text))  # type: ignore[misc]
        codes[mask] = np.array([*(CODE[value] for value in told.values), -1])[told.codes]
    return Text(codes, STAGES)


def stage_of_range(name: str) -> str | None:
    """The stage that the name of a range tells, None where it tells none.

    Example:
        >>> stage_of_range("compute_loss"), stage_of_range("Dense_0")
        ('loss', None)
    """
    return _first(_RANGE_RULES, name)


def _first(rules: list[tuple[re.Pattern[str], str]], text: str) -> str | None:
    return next((stage for pattern, stage in rules if pattern.search(text)), None)
