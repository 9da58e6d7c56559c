"""Rules on mixtures of experts, sharded layers, retries of the allocator and parts of loading."""

from __future__ import annotations

import pytest
from drawn_findings import A100, found


def experts(count: int, tokens: str = "varied", name: str = "aten::index", us: int = 6) -> str:
    """A loop over experts: indexing, a product that takes 20 us to call and some to run."""
    text, at = ["main | 0 4000 | ProfilerStep#0"], 10.0
    for number in range(count):
        rows = 16 + 3 * number if tokens == "varied" else 64
        text += [
            f"main | {at} {at + 4} | {name}",
            f"main | {at + 5} {at + 25} | aten::mm | Input_Dims=[[{rows},512],[512,2048]]",
            f"main | {at + 8} {at + 12} | cudaLaunchKernel | corr={number + 1}",
            f"stream 7 | {at + 14} {at + 14 + us} | volta_sgemm | corr={number + 1}",
        ]
        at += 30
    return "\n".join(text)


def micro_batches(layers: int, count: int) -> str:
    """Inputs of any length one after the other, each through the same layers, which index."""
    text, at = ["main | 0 4000 | ProfilerStep#0"], 10
    for number in range(count * layers):
        rows = 16 + 3 * (number // layers)
        text += [
            f"main | {at} {at + 28} | stepscope.module: layer{number % layers}",
            f"main | {at + 1} {at + 4} | aten::index",
            f"main | {at + 5} {at + 25} | aten::mm | Input_Dims=[[{rows},512],[512,512]]",
        ]
        at += 30
    return "\n".join(text)


def test_a_loop_over_experts_is_reported_with_its_rows_and_what_one_call_saves() -> None:
    finding = found("expert_loop", experts(64), devices=A100)
    assert finding is not None
    assert "64 matrix products per step. They have 16 to 205 rows" in finding.what
    assert "grouped_mm" in finding.advice
    assert "Balance" not in finding.advice
    low, high = finding.gain.stated_ms
    assert low == pytest.approx(64 * (0.020 - 0.006))
    assert high == pytest.approx(63 * 0.020)


@pytest.mark.parametrize(
    "text",
    [
        experts(6),
        experts(64, "equal"),
        experts(64, name="aten::relu"),
        experts(64) + "\nmain | 3900 3950 | aten::_grouped_mm",
        micro_batches(layers=6, count=9),
        micro_batches(layers=1, count=32),
    ],
    ids=["few", "layers of one size", "batches of any length", "grouped", "micro-batches", "samples"],
)
def test_other_products_are_no_experts(text: str) -> None:
    assert found("expert_loop", text, devices=A100) is None


def tokens(count: int) -> str:
    """Each token alone through its expert on a CPU: indexing, a product, an activation, backward."""
    text, at = ["main | 0 9000 | ProfilerStep#0"], 10
    for number in range(count):
        shape = "Input_Dims=[[1,64],[64,64]]"
        text += [
            f"main | {at} {at + 5} | aten::index",
            f"main | {at + 5} {at + 15} | stepscope.module: experts.{number % 8}",
            f"main | {at + 6} {at + 14} | aten::mm | seq={number + 1} {shape}",
            f"main | {at + 15} {at + 20} | aten::gelu | seq={number + 100}",
        ]
        at += 20
    for number in reversed(range(count)):
        node = "autograd::engine::evaluate_function:"
        text += [
            f"main | {at} {at + 10} | {node} GeluBackward0 | seq={number + 100} fwd=1",
            f"main | {at + 10} {at + 30} | {node} MmBackward0 | seq={number + 1} fwd=1",
        ]
        at += 30
    return "\n".join(text)


def test_on_a_cpu_a_loop_over_tokens_saves_all_that_it_calls() -> None:
    """64 tokens of 8 experts: of each 20 us forward and 30 us backward, not the product alone."""
    children = [{"name": f"experts.{number}", "class": "Expert"} for number in range(8)]
    model = {"name": "moe", "class": "MoE", "children": children}
    finding = found("expert_loop", tokens(64), model=model)
    assert finding is not None
    assert "matrix products per step. Each has 1 row." in finding.what
    low, high = finding.gain.stated_ms
    assert high == pytest.approx(63 / 64 * 64 * 0.05, rel=0.02)
    assert low == pytest.approx(0.8 * 56 / 64 * 64 * 0.05, rel=0.02)


LAYERS = 6


def sharded(early: bool, marks: str = "FSDP::all_gather (layers.{})", compute: int = 200) -> str:
    """All-gathers of 100 us, before or while the layer before them computes."""
    text, at, id = ["main | 0 3000 | ProfilerStep#0"], 10, 0
    for layer in range(LAYERS):
        begin = at - compute if early and layer else at
        text += [
            f"main | {20 + 20 * layer} {30 + 20 * layer} | {marks.format(layer)}",
            f"main | {21 + 20 * layer} {22 + 20 * layer} | cudaLaunchKernel | corr={id + 1}",
            f"comm 20 | {begin + 100} {begin + 200} | ncclDevKernel_AllGather_RING_LL | corr={id + 1}",
            f"main | {32 + 20 * layer} {36 + 20 * layer} | aten::mm",
            f"main | {33 + 20 * layer} {34 + 20 * layer} | cudaLaunchKernel | corr={id + 2}",
            f"stream 7 | {at + 200} {at + 200 + compute} | volta_fp16_s884gemm | corr={id + 2}",
        ]
        id, at = id + 2, at + compute + (0 if early else 200)
    return "\n".join(text)


@pytest.mark.parametrize(
    ("marks", "advice"),
    [
        ("FSDP::all_gather (layers.{})", "set_modules_to_forward_prefetch"),
        ("FullyShardedDataParallel._pre_forward", "forward_prefetch=True"),
    ],
)
def test_layers_gathered_only_when_they_are_needed(marks: str, advice: str) -> None:
    finding = found("fsdp_prefetch", sharded(early=False, marks=marks), devices=A100)
    assert finding is not None
    assert advice in finding.advice
    assert finding.gain.ms == pytest.approx((LAYERS - 1) * 0.1)  # nothing hides the first


def test_what_a_layer_cannot_hide_is_no_gain() -> None:
    short = found("fsdp_prefetch", sharded(early=False, compute=40), devices=A100)
    assert short is not None
    assert short.gain.ms == pytest.approx((LAYERS - 1) * 0.04)


@pytest.mark.parametrize(
    "text",
    [sharded(early=True), sharded(early=False, marks="tensor_parallel")],
    ids=["prefetched", "not FSDP"],
)
def test_other_all_gathers_are_left_to_other_rules(text: str) -> None:
    assert found("fsdp_prefetch", text, devices=A100) is None


ALLOCATING = """
    main | {at} {end} | ProfilerStep#{step}
    main | {begin} {after} | {around}
    main | {free} {freed} | cudaFree
    main | {freed}.5 {after}.0 | cudaMalloc
    main | {mm} {mm}.9 | aten::mm
    main | {mm}.1 {mm}.5 | cudaLaunchKernel | corr={id}
    stream 7 | {work} {done} | volta_fp16_s884gemm | corr={id}
"""


@pytest.mark.parametrize(
    ("around", "why", "advice"),
    [
        ("aten::empty", "ran out of memory", "expandable_segments"),
        ("train.py(10): clear", "emptied in the loop", "empty_cache"),
    ],
)
def test_why_memory_is_freed_in_each_step(around: str, why: str, advice: str) -> None:
    steps = [
        ALLOCATING.format(
            at=at,
            end=at + 1000,
            step=id,
            begin=at + 10,
            free=at + 12,
            freed=at + 300,
            after=at + 500,
            mm=at + 600,
            work=at + 602,
            done=at + 950,
            around=around,
            id=id,
        )
        for id, at in enumerate((0, 1000, 2000), start=1)
    ]
    finding = found("allocator_churn", "".join(steps), devices=A100)
    assert finding is not None
    assert why in finding.what
    assert advice in finding.advice


LOADING = """
    main | 0 1000 | ProfilerStep#0
    main | 10 800 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 20 520 | PIL/Image.py(3000): open
    main | 530 730 | torch/utils/data/_utils/collate.py(100): default_collate
    main | 540 640 | torchvision/transforms/functional.py(300): resize
    main | 810 990 | aten::mm
"""


def test_loading_is_told_by_part_and_the_longest_part_has_its_own_advice() -> None:
    finding = found("input_bound", LOADING)
    assert finding is not None
    assert "Most of it is decoding (63%), then collating (13%), augmenting (13%)." in finding.what
    assert "decode on the device" in finding.advice


def test_copies_are_a_part_of_loading() -> None:
    finding = found("input_bound", LOADING.replace("PIL/Image.py(3000): open", "cudaMemcpyAsync"))
    assert finding is not None
    assert "Most of it is copying to the device (63%)" in finding.what


def test_a_part_of_less_than_half_is_not_most_of_it() -> None:
    finding = found("input_bound", LOADING.replace("| 20 520 | PIL", "| 20 340 | PIL"))
    assert finding is not None
    assert "The largest part is decoding (41%)" in finding.what
