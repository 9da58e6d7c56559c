"""Findings in full on loops of Python: modules, reads, experts, chains and batches of few rows."""

from __future__ import annotations

import pytest
from drawn_findings import NODE, Case, Limit, alone, from_limit_on, in_full, repeated

from stepscope.facts.summary.facts import StagePlace

EXPERTS = {
    "name": "moe",
    "class": "MoE",
    "children": [{"name": f"experts.{number}", "class": "Expert"} for number in range(2)],
}

LAYER = {"name": "net", "class": "Net", "children": [{"name": "layer", "class": "Linear"}]}


def modules(
    count: int, us: float = 8, product: str = "aten::linear", length: float = 1600, more: str = ""
) -> str:
    """Each row alone through a layer: an element, a product, 10 us of Python between; then backward."""
    lines, at = [], 10.0
    for number in range(count):
        lines += [
            f"main | {at} {at + 5} | aten::select",
            f"main | {at + 15} {at + 17 + us} | stepscope.module: layer",
            f"main | {at + 16} {at + 16 + us} | {product} | seq={number + 1}",
        ]
        at += 30 + us
    for number in reversed(range(count)):
        lines.append(f"main | {at} {at + 20} | {NODE} MmBackward0 | seq={number + 1} fwd=1")
        at += 20
    return repeated("\n".join([*lines, more]), length)


def reads(count: int, *between: str, every: float = 20) -> str:
    """A value read after each of some operators in turn."""
    lines = ["main | 1 4 | aten::relu | cat=annotation"]
    for turn in range(count):
        at = 10 + every * turn
        lines.append(f"main | {at} {at + 15} | {between[turn % len(between)]}")
        lines.append(f"main | {at + 16} {at + 17} | aten::item")
    lines.append("main | 970 971 | aten::nonzero")
    return repeated("\n".join(lines))


def experts(count: int, rows: str = "varied", weights: int = 99, gathers: int = 99, columns: int = 64) -> str:
    """Products of some weights of one size, each after indexing, in modules of their own."""
    lines, at = [], 10.0
    for number in range(count):
        size = {"varied": 16 + 3 * number, "one": 1, "equal": 64}[rows]
        dims = f"Input_Dims=[[{size},{columns}],[{columns},64]]"
        lines += [
            f"main | {at} {at + 4} | {'aten::index' if number < gathers else 'aten::relu'}",
            f"main | {at + 5} {at + 21} | stepscope.module: layers.{number % weights}",
            f"main | {at + 6} {at + 20} | aten::mm | seq={number} {dims}",
        ]
        at += 25
    for number in reversed(range(count)):
        lines.append(f"main | {at} {at + 10} | {NODE} MmBackward0 | seq={number} fwd=1")
        at += 10
    return repeated("\n".join(lines), 2000)


def chains(operators: int, us: float = 4, between: str = "", count: int = 6) -> str:
    """Layers of a product and elementwise operators, then the backward pass of these."""
    lines, at, sequence, nodes = [], 10.0, 0, list[str]()
    for _ in range(count):
        lines.append(f"main | {at} {at + 20} | aten::mm")
        at += 22
        for _ in range(operators):
            sequence += 1
            lines.append(f"main | {at} {at + us} | aten::mul | seq={sequence}")
            nodes.insert(0, f"seq={sequence} fwd=1")
            at += us + 2
            if between:
                lines.append(f"main | {at} {at + 1} | {between}")
                at += 2
    lines.append(f"main | {at} {at + 20} | aten::mm")
    at += 22
    for place, link in enumerate(nodes):
        lines.append(f"main | {at} {at + us + 2} | {NODE} MulBackward0 | {link}")
        at += us + 4
        if place % operators == operators - 1:
            lines.append(f"main | {at} {at + 20} | aten::mm")
            at += 22
    return repeated("\n".join(lines), 2000)


SMALL = f"""
    main | 10 30 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 910 915 | aten::linear | Input_Dims=[[{{rows}},512],[512,512]] seq=1
    main | 920 {{end}} | aten::relu
    main | 950 955 | {NODE} LinearBackward0 | seq=1 fwd=1
"""


def small(rows: str, work_us: float = 19) -> str:
    return repeated(SMALL.format(rows=rows, end=920 + work_us))


CASES = {
    "a module called again and again": Case(
        "repeated_module",
        modules(16),
        """
        A module is called 16 times per step with little work each.
        See layer.
        -> If no call needs an earlier one's result, stack inputs along the batch dimension and
        call it once.
        warning: 0.855 of 1.6 ms, 0.513 to 0.855
        all calls of the loop and of its backward pass, but one
        * aten::linear × 16, 0.128 ms, forward layer
        """,
        metadata={"model": LAYER},
    ),
    "reads": Case(
        "synchronizing_calls",
        reads(40, "aten::argmax", "aten::eq"),
        """
        Each step calls .item(), float(), bool() or `if` 40 times.
        They take 0.04 ms; on a GPU each blocks the CPU.
        -> Keep the value in a tensor, and read it only every N steps.
        critical: 0.801 of 1 ms, 0.4005 to 0.801
        at most the time of the loops around them
        * aten::item × 40, 0.04 ms, forward
        """,
    ),
    "reads of sizes": Case(
        "synchronizing_calls",
        reads(40, "aten::argmax").replace("aten::item", "aten::nonzero"),
        """
        Each step calls nonzero, boolean-mask indexing or unique 41 times.
        They take 0.041 ms; on a GPU each blocks the CPU.
        -> Only the device knows the size of the result.
        critical: 0.812 of 1 ms, 0.406 to 0.812
        at most the time of the loops around them
        * aten::nonzero × 41, 0.041 ms, forward
        """,
    ),
    "reads in an update": Case(
        "synchronizing_calls", repeated("main | 5 990 | ## optimizer ##") + "\n" + reads(40, "aten::mul_")
    ),
    "reads of what a model computes": Case(
        "synchronizing_calls",
        reads(40, "aten::addmm", "aten::argmax"),
        """
        Each step calls .item(), float(), bool() or `if` 40 times.
        They take 0.04 ms; on a GPU each blocks the CPU.
        -> Keep the value in a tensor, and read it only every N steps.
        info: 0.04 of 1 ms, 0.02 to 0.04
        at most the time of the loops around them
        * aten::item × 40, 0.04 ms, forward
        """,
    ),
    "experts": Case(
        "expert_loop",
        experts(16),
        """
        Experts run one after the other: 16 matrix products per step.
        They have 16 to 61 rows.
        Most is in layers.0.
        -> Sort the tokens by expert and multiply them in one call: torch.nn.functional.grouped_mm
        (torch._grouped_mm before PyTorch 2.10), or MegaBlocks.
        critical: 0.519375 of 2 ms, 0 to 0.519375
        all calls of the loop and of its backward pass, at most
        * aten::mm × 1, 0.014 ms, forward layers.0
        * aten::mm × 1, 0.014 ms, forward layers.1
        * aten::mm × 1, 0.014 ms, forward layers.10
        * aten::mm × 1, 0.014 ms, forward layers.11
        * aten::mm × 1, 0.014 ms, forward layers.12
        * aten::mm × 1, 0.014 ms, forward layers.13
        * aten::mm × 1, 0.014 ms, forward layers.14
        * aten::mm × 1, 0.014 ms, forward layers.15
        * aten::mm × 1, 0.014 ms, forward layers.2
        * aten::mm × 1, 0.014 ms, forward layers.3
        * aten::mm × 1, 0.014 ms, forward layers.4
        * aten::mm × 1, 0.014 ms, forward layers.5
        * aten::mm × 1, 0.014 ms, forward layers.6
        * aten::mm × 1, 0.014 ms, forward layers.7
        * aten::mm × 1, 0.014 ms, forward layers.8
        * aten::mm × 1, 0.014 ms, forward layers.9
        """,
    ),
    "experts by name": Case(
        "expert_loop",
        experts(16, "one", 2).replace("layers.", "experts."),
        """
        Experts run one after the other: 16 matrix products per step.
        Each has 1 row.
        Most is in experts.0.
        -> Sort the tokens by expert and multiply them in one call: torch.nn.functional.grouped_mm
        (torch._grouped_mm before PyTorch 2.10), or MegaBlocks.
        critical: 0.519375 of 2 ms, 0.3878 to 0.519375
        all calls of the loop and of its backward pass, at most
        * aten::mm × 8, 0.112 ms, forward experts.0
        * aten::mm × 8, 0.112 ms, forward experts.1
        """,
        metadata={"model": EXPERTS},
    ),
    "chains": Case(
        "kernel_fusion",
        chains(4),
        """
        48 small elementwise operators per step, 5 µs each.
        They run in 12 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.252 of 2 ms, 0.126 to 0.252
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.144 ms, backward
        * aten::mul × 24, 0.096 ms, forward
        """,
    ),
    "chains with views": Case(
        "kernel_fusion",
        chains(4, between="aten::view"),
        """
        48 small elementwise operators per step, 5 µs each.
        They run in 12 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.252 of 2 ms, 0.126 to 0.252
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.144 ms, backward
        * aten::mul × 24, 0.096 ms, forward
        """,
    ),
    "chains of long operators": Case(
        "kernel_fusion",
        chains(4, 20),
        """
        Chains of elementwise operators take 1.01 ms per step (50%).
        Each of 48 operators reads and writes its whole tensor.
        -> Fuse them: apply torch.compile to the model or to this function.
        critical: 0.828 of 2 ms, 0.414 to 0.828
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.528 ms, backward
        * aten::mul × 24, 0.48 ms, forward
        """,
    ),
    "a batch of 8 with some work": Case(
        "small_batch",
        small("8", 25),
        """
        Batches have 8 rows; 96% of the step is fixed overhead.
        -> Use larger batches (and scale the learning rate), or pack several samples into one.
        critical: 0.955 of 1 ms, 0.4775 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 1, 0.005 ms, forward
        """,
    ),
    "a batch of 8": Case(
        "small_batch",
        small("8"),
        """
        Batches have 8 rows; 98% of the step is fixed overhead.
        -> Use larger batches (and scale the learning rate), or pack several samples into one.
        critical: 0.98 of 1 ms, 0.49 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 1, 0.005 ms, forward
        """,
    ),
}

LIMITS = {
    "16 calls": Limit("repeated_module", modules(16), modules(15), {"model": LAYER}),
    "products of less than 20 us": Limit(
        "repeated_module", modules(16, 19.9, length=2000), modules(16, 20, length=2000), {"model": LAYER}
    ),
    "calls of 20 % of the step": Limit(
        "repeated_module", modules(16, length=4200), modules(16, length=4350), {"model": LAYER}
    ),
    "32 reads": Limit("synchronizing_calls", reads(32, "aten::argmax"), reads(31, "aten::argmax")),
    "8 experts": Limit("expert_loop", experts(8), experts(7)),
    "8 numbers of rows": Limit("expert_loop", experts(8), experts(16, "equal")),
    "4 weights": Limit("expert_loop", experts(16, weights=4), experts(16, weights=3)),
    "one gathering for 4 products": Limit("expert_loop", experts(16, gathers=5), experts(16, gathers=4)),
    "20 elementwise operators": Limit("kernel_fusion", chains(10, count=1), chains(9, count=1)),
    "operators of less than 10 us": Limit("kernel_fusion", chains(4, 9, count=6), chains(2, 11, count=6)),
    "a batch of 8 rows": Limit("small_batch", small("8"), small("9")),
    "batches of 2 times 4 rows": Limit("small_batch", small("2,4"), small("2,5")),
    "operators of less than 20 us": Limit("small_batch", small("8", 19.999), small("8", 400)),
}


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("transformers/trainer.py", "Raise logging_steps in TrainingArguments."),
        ("lightning/pytorch/trainer.py", "Raise log_every_n_steps of the Trainer, and log tensors"),
        ("train.py", "Keep the value in a tensor"),
    ],
)
def test_a_library_has_an_option_for_its_reads(file: str, advice: str) -> None:
    text = f"{reads(40, 'aten::argmax')}\nmain | 1 999 | {file}(3): fit | cat=python"
    (finding,) = alone("synchronizing_calls", text)
    assert finding.advice.startswith(advice)


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)


def place(
    share: float, function: str = "log", stage: str = "other", samples: int = 50, error: float = 0.0
) -> StagePlace:
    called = ("main (/me/train.py:64)",)
    return StagePlace(stage, function, "/me/train.py", 7, 10 * share, share, 0.0, samples, 10 * error, called)


def test_calls_one_by_one_count_on_a_cpu_of_pytorch() -> None:
    text = modules(16)
    works = "\nmain | 1 2 | cudaLaunchKernel | corr=1\nstream 7 | 3 9 | sgemm | corr=1"
    assert len(alone("repeated_module", text, model=LAYER)) == 1
    assert alone("repeated_module", text + works, model=LAYER) == []
    assert alone("repeated_module", text, model=LAYER, framework="jax") == []
