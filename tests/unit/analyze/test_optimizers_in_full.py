"""What is said of an optimizer in full: by class, on a CPU and on a device, and with the line to change."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import Case, Limit, alone, from_limit_on, in_full, repeated

LIGHTNING, TRANSFORMERS, ACCELERATE, TIMM = (
    f"main | 1 999 | {file}(9): fit | cat=python\n"
    for file in (
        "lightning/pytorch/trainer.py",
        "transformers/trainer.py",
        "accelerate/accelerator.py",
        "timm/data/loader.py",
    )
)


def updating(name: str, count: int, operator: str = "aten::mul_", more: str = "") -> str:
    """An update of operators of 15 us, and others outside of it."""
    lines = [f"main | 100 950 | Optimizer.step#{name}.step", "main | 20 30 | aten::mm"]
    lines += [f"main | {at} {at + 15} | {operator}" for at in range(110, 110 + 20 * count, 20)]
    lines += ["main | 40 50 | autograd::engine::evaluate_function: MmBackward0"]
    lines += ["main | 60 70 | aten::norm", "main | 945 948 | a range | cat=annotation"]
    return repeated("\n".join(lines) + more)


def marked(count: int) -> str:
    """An update that the user marks, of operators of 15 us."""
    return updating("Adam", count).replace("Optimizer.step#Adam.step", "## optimizer ##")


def on_device(name: str, count: int, operator: str = "aten::mul_", kernel: str = "elementwise_kernel") -> str:
    """An update that launches kernels of 3 us, which the device runs at once."""
    lines = [f"main | 100 950 | Optimizer.step#{name}.step", "main | 20 30 | aten::mm"]
    lines += ["main | 21 22 | cudaLaunchKernel | corr=1", "stream 7 | 25 90 | volta_gemm | corr=1"]
    for at in range(110, 110 + 20 * count, 20):
        lines += [
            f"main | {at} {at + 15} | {operator}",
            f"main | {at + 2} {at + 12} | cudaLaunchKernel | corr={at}",
        ]
        lines.append(f"stream 7 | {at + 16} {at + 19} | {kernel} | corr={at}")
    lines += ["main | 920 925 | cudaMemcpyAsync | corr=2", "stream 7 | 930 931 | Memcpy DtoD | corr=2"]
    return repeated("\n".join(lines))


def created(name: str, call: str) -> dict[str, Any]:
    """A capture with the line that creates the only optimizer."""
    facts = {
        "what": "optimizer",
        "class": name,
        "file": "train.py",
        "line": 1,
        "call": call,
        "source": f"o = {call}",
    }
    return {"capture": {"created": [facts]}}


CASES = {
    "Adam": Case(
        "optimizer_loop",
        updating("Adam", 30),
        """
        Adam updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Create the optimizer with fused=True: torch.optim.Adam(..., fused=True).
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 30, 0.45 ms, optimizer
        """,
    ),
    "AdamW and SGD": Case(
        "optimizer_loop",
        updating(
            "AdamW",
            20,
            more="\nmain | 960 990 | Optimizer.step#SGD.step\n"
            + "\n".join(f"main | {at} {at + 1} | aten::add_" for at in range(961, 981, 2)),
        ),
        """
        AdamW and SGD update the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Create the optimizers with fused=True: torch.optim.AdamW(..., fused=True) and
        torch.optim.SGD(..., fused=True).
        critical: 0.88 of 1 ms, 0 to 0.88
        at most the time of the update without its products
        * aten::mul_ × 20, 0.3 ms, optimizer
        * aten::add_ × 10, 0.01 ms, optimizer
        """,
    ),
    "Lion": Case(
        "optimizer_loop",
        updating("Lion", 30),
        """
        Lion updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Compile the step of the optimizer: step = torch.compile(optimizer.step).
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 30, 0.45 ms, optimizer
        """,
    ),
    "SGD and Adam": Case(
        "optimizer_loop",
        updating("SGD", 30, more="\nmain | 960 990 | Optimizer.step#Adam.step\nmain | 961 962 | aten::add_"),
        """
        SGD and Adam update the weights one parameter at a time.
        A Python loop starts 31 operators per step.
        -> Create the optimizers with fused=True: torch.optim.SGD(..., fused=True) and
        torch.optim.Adam(..., fused=True).
        critical: 0.88 of 1 ms, 0 to 0.88
        at most the time of the update without its products
        * aten::mul_ × 30, 0.45 ms, optimizer
        * aten::add_ × 1, 0.001 ms, optimizer
        """,
    ),
    "an update of the user's": Case(
        "optimizer_loop",
        marked(30),
        """
        The optimizer updates the weights one parameter at a time.
        A Python loop starts 31 operators per step.
        -> Use Adam, AdamW, SGD or Adagrad of torch.optim with fused=True.
        critical: 0.46 of 1 ms, 0 to 0.46
        simulated, at most: with an update that takes no time
        scale:select=stage=optimizer,factor=0
        * aten::mul_ × 30, 0.45 ms, optimizer
        * aten::norm × 1, 0.01 ms, optimizer
        """,
    ),
    "an update in JAX": Case(
        "optimizer_loop",
        marked(30),
        """
        The optimizer updates the weights one parameter at a time.
        It starts 31 operators per step.
        -> Update all weights as one vector (wrap the optimizer in optax.flatten).
        critical: 0.46 of 1 ms, 0 to 0.46
        simulated, at most: with an update that takes no time
        scale:select=stage=optimizer,factor=0
        * aten::mul_ × 30, 0.45 ms, optimizer
        * aten::norm × 1, 0.01 ms, optimizer
        """,
        metadata={"framework": "jax"},
    ),
    "an update of another framework": Case(
        "optimizer_loop",
        marked(30),
        """
        The optimizer updates the weights one parameter at a time.
        It starts 31 operators per step.
        -> The trace is of mx; stepscope has advice for PyTorch and JAX only.
        critical: 0.46 of 1 ms, 0 to 0.46
        simulated, at most: with an update that takes no time
        scale:select=stage=optimizer,factor=0
        * aten::mul_ × 30, 0.45 ms, optimizer
        * aten::norm × 1, 0.01 ms, optimizer
        """,
        metadata={"framework": "mx"},
    ),
    "Adam, created in one line": Case(
        "optimizer_loop",
        updating("Adam", 30),
        """
        Adam updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Create the optimizer with fused=True: torch.optim.Adam(..., fused=True).
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        - o = Adam(weights, foreach=False) + o = Adam(weights, fused=True)
        * aten::mul_ × 30, 0.45 ms, optimizer
        """,
        metadata=created("Adam", "Adam(weights, foreach=False)"),
    ),
    "RMSprop on a device, created in one line": Case(
        "optimizer_loop",
        on_device("RMSprop", 30),
        """
        RMSprop updates the weights one parameter at a time.
        A Python loop starts 30 kernels per step.
        -> Create the optimizer with foreach=True: torch.optim.RMSprop(..., foreach=True).
        critical: 0.85 of 1 ms, 0 to 0.85
        simulated, at most: with an update that takes no time
        scale:select=stage=optimizer,factor=0
        - o = RMSprop(weights) + o = RMSprop(weights, foreach=True)
        * elementwise_kernel × 30, 0.09 ms, optimizer
        """,
        metadata=created("RMSprop", "RMSprop(weights)"),
    ),
    "Adam on a device": Case(
        "optimizer_loop",
        on_device("Adam", 30),
        """
        Adam updates the weights one parameter at a time.
        A Python loop starts 30 kernels per step.
        -> Create the optimizer with fused=True: torch.optim.Adam(..., fused=True).
        critical: 0.8135 of 1 ms, 0.789255 to 0.837745
        what-if fused_optimizer
        fused_optimizer
        * elementwise_kernel × 30, 0.09 ms, optimizer
        """,
    ),
    "Adam with many kernels": Case(
        "optimizer_loop",
        on_device("Adam", 30, "aten::_foreach_add_"),
        """
        Adam updates the weights with many kernels.
        It starts 30 kernels per step.
        -> Create the optimizer with fused=True: torch.optim.Adam(..., fused=True).
        critical: 0.8135 of 1 ms, 0.789255 to 0.837745
        what-if fused_optimizer
        fused_optimizer
        * elementwise_kernel × 30, 0.09 ms, optimizer
        """,
    ),
    "RMSprop with many kernels": Case("optimizer_loop", on_device("RMSprop", 30, "aten::_foreach_add_")),
    "Lion with many kernels": Case("optimizer_loop", on_device("Lion", 30, "aten::_foreach_add_")),
    "Lion on a device": Case(
        "optimizer_loop",
        on_device("Lion", 30),
        """
        Lion updates the weights one parameter at a time.
        A Python loop starts 30 kernels per step.
        -> Compile the step of the optimizer: step = torch.compile(optimizer.step).
        critical: 0.85 of 1 ms, 0 to 0.85
        simulated, at most: with an update that takes no time
        scale:select=stage=optimizer,factor=0
        * elementwise_kernel × 30, 0.09 ms, optimizer
        """,
    ),
    "a fused update": Case("optimizer_loop", on_device("Adam", 30, kernel="multi_tensor_apply<FusedAdam>")),
    "AdamW in transformers": Case(
        "optimizer_loop",
        updating("AdamW", 30) + "\n" + TRANSFORMERS,
        """
        AdamW updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Set optim='adamw_torch_fused' in TrainingArguments.
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 15, 0.225 ms, optimizer
        * aten::mul_ × 15, 0.225 ms, optimizer transformers/trainer.py:9 in fit
        """,
    ),
    "Adam in timm": Case(
        "optimizer_loop",
        updating("Adam", 30) + "\n" + TIMM,
        """
        Adam updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Run with --opt adamw and --opt-kwargs fused=True.
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 15, 0.225 ms, optimizer
        * aten::mul_ × 15, 0.225 ms, optimizer timm/data/loader.py:9 in fit
        """,
    ),
    "SGD in transformers": Case(
        "optimizer_loop",
        updating("SGD", 30) + "\n" + TRANSFORMERS,
        """
        SGD updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Create the optimizer with fused=True: torch.optim.SGD(..., fused=True).
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 15, 0.225 ms, optimizer
        * aten::mul_ × 15, 0.225 ms, optimizer transformers/trainer.py:9 in fit
        """,
    ),
    "Adam in transformers": Case(
        "optimizer_loop",
        updating("Adam", 30) + "\n" + TRANSFORMERS,
        """
        Adam updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Set optim='adamw_torch_fused' in TrainingArguments.
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 15, 0.225 ms, optimizer
        * aten::mul_ × 15, 0.225 ms, optimizer transformers/trainer.py:9 in fit
        """,
    ),
    "Lion in transformers": Case(
        "optimizer_loop",
        updating("Lion", 30) + "\n" + TRANSFORMERS,
        """
        Lion updates the weights one parameter at a time.
        A Python loop starts 30 operators per step.
        -> Compile the step of the optimizer: step = torch.compile(optimizer.step).
        critical: 0.85 of 1 ms, 0 to 0.85
        at most the time of the update without its products
        * aten::mul_ × 15, 0.225 ms, optimizer
        * aten::mul_ × 15, 0.225 ms, optimizer transformers/trainer.py:9 in fit
        """,
    ),
}

LIMITS = {
    "30 operators": Limit("optimizer_loop", updating("Adam", 30), updating("Adam", 29)),
    "30 kernels": Limit("optimizer_loop", on_device("Adam", 30), on_device("Adam", 29)),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)


@pytest.mark.parametrize("name", ["Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_a_class_that_is_not_fused_may_update_many_weights_at_once_on_a_device(name: str) -> None:
    (finding,) = alone("optimizer_loop", on_device(name, 30))
    assert finding.advice == f"Create the optimizer with foreach=True: torch.optim.{name}(..., foreach=True)."
    assert alone("optimizer_loop", updating(name, 30)) == []
