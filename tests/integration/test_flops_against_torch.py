"""Operations counted from a recorded step, against PyTorch's own counter of the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.facts.roofline.formulas import OperatorCall, Tensor, work_of
from stepscope.facts.summary.report_facts import summarize

torch = pytest.importorskip("torch")
Step = Callable[[], None]


def counted(step: Step) -> int:
    """What `torch.utils.flop_counter` counts, with attention written out as products."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    return int(counter.get_total_flops())


def told(step: Step, folder: Path) -> float:
    """What a report tells of a trace of the step."""
    with torch.profiler.profile(record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(folder / "step.json"))
    efficiency = summarize(stepscope.open(folder / "step.json", cache=False)).efficiency
    assert efficiency is not None
    assert efficiency.known == 1
    return efficiency.flops


def training(model: object, *shape: int) -> Step:
    """A forward and a backward pass."""
    batch = torch.randn(*shape)
    return lambda: model(batch).sum().backward()  # type: ignore[operator]


def gram(*shape: int) -> Step:
    """Every row by every other, with `@`."""
    layer = torch.nn.Linear(shape[-1], shape[-1])
    return training(lambda rows: layer(rows) @ layer(rows).transpose(1, 2), *shape)


def attention(**options: bool) -> Step:
    """Attention of 2 heads over 64 places."""
    query, key, value = torch.randn(3, 4, 2, 64, 32)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, key, value, **options)


@pytest.mark.parametrize(
    "step",
    [
        lambda: training(torch.nn.Linear(16, 32), 8, 16),
        lambda: training(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)), 2, 8, 16),
        lambda: gram(3, 8, 16),
        lambda: training(
            torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, stride=2, padding=1), torch.nn.Conv2d(8, 8, 3)),
            2,
            4,
            16,
            16,
        ),
        lambda: training(
            torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ConvTranspose2d(8, 4, 3, stride=2)),
            2,
            4,
            12,
            12,
        ),
        lambda: training(torch.nn.Conv1d(4, 8, 5, dilation=2), 2, 4, 32),
        lambda: attention(),
    ],
    ids=["linear", "two layers", "matmul", "convolution", "transposed", "dilated", "attention"],
)
def test_operations_are_those_that_torch_counts(step: Callable[[], Step], tmp_path: Path) -> None:
    torch.manual_seed(0)
    chosen = step()
    assert told(chosen, tmp_path) == counted(chosen)


def test_a_grouped_convolution_costs_a_group_of_what_it_would(tmp_path: Path) -> None:
    """For the gradient of its weights torch 2.13 counts every pair of channels."""
    whole, grouped = (training(torch.nn.Conv2d(8, 8, 3, groups=groups), 2, 8, 16, 16) for groups in (1, 4))
    assert told(grouped, tmp_path) == told(whole, tmp_path) / 4 == counted(whole) / 4


def test_of_causal_attention_half_is_computed(tmp_path: Path) -> None:
    assert told(attention(is_causal=True), tmp_path) == counted(attention()) / 2


@pytest.mark.parametrize(
    "name",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ],
)
@pytest.mark.parametrize("suffix", ["", "_backward"])
def test_the_argument_that_tells_of_a_mask_is_where_torch_has_it(name: str, suffix: str) -> None:
    schema = getattr(torch.ops.aten, name + suffix).default._schema
    place = [argument.name for argument in schema.arguments].index("is_causal")
    heads = (Tensor((1, 2, 16, 8), 2),)
    values = ["False"] * len(schema.arguments)
    both = []
    for masked in ("False", "True"):
        values[place] = masked
        work = work_of(f"aten::{name}{suffix}", OperatorCall((heads,) * 4, tuple(values)))
        assert work is not None
        both.append(work.flops)
    assert both[1] == both[0] / 2
