"""`optimizer_loop`: the optimizer updates weights one by one, or with many kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Rows
from stepscope.summary.numbers import rounded

CAUSE = "optimizer"
EXPLAINS = ("host", "launch")
MANY = 30
_FUSED = r"_fused_|[Ff]used_?(Adam|SGD|LAMB|Adagrad|adam|sgd)|FusedOptimizer"
_FOREACH = r"^aten::_foreach_"
_STEP = r"^Optimizer\.step#"
_UPDATE = rf"{_STEP}(?!LBFGS\.|SparseAdam\.)"
_CLASS = re.compile(r"^Optimizer\.step#(\w+)\.step")
# What torch.optim takes for each class: PyTorch 2.x, `help(torch.optim.Adam)` and so on.
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
FOREACH = (*FUSED, "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
LIBRARIES = {
    "transformers": "Set optim='adamw_torch_fused' in TrainingArguments.",
    "timm": "Run with --opt adamw and --opt-kwargs fused=True.",
}
JAX = (
    "Update all weights as one vector (wrap the optimizer in optax.flatten), and keep the update "
    "inside the jax.jit of the step."
)


def optimizer_loop(context: RuleContext) -> Iterator[Finding]:
    """An optimizer that is not fused: a loop over the parameters, or many kernels for all of them.

    Silent if a fused optimizer runs, if the optimizer calls fewer than 30 operators per step (on a
    device: launches fewer kernels), if nothing marks the optimizer, and if its class has no faster
    implementation. Gradient clipping does not count if the update itself is marked, nor do LBFGS,
    which updates all parameters as one vector, and SparseAdam, for whose gradients there is no
    other.
    """
    updates = context.find(_UPDATE)
    marked = len(context.find(_STEP)) > 0
    if len(context.find(_FUSED, stage="optimizer")) or (marked and not len(updates)):
        return
    inside = updates if marked else None
    calls = context.find(stage="optimizer", category="cpu_op", inside=inside)
    rows = context.innermost_operators(calls)
    kernels = context.find(stage="optimizer", category="kernel", on_device=True, inside=inside)
    if context.calls(kernels if context.has_device else rows) < MANY:
        return
    looped = not len(context.find(_FOREACH, stage="optimizer", inside=inside))
    name = _class_of(context, updates)
    advice = context.advice(_advice(context, name, looped), jax=JAX, **_libraries(name))
    if not advice:
        return
    form = _form(context, looped)
    number = f"{rounded(context.calls(kernels), 4)} kernels" if context.has_device \
        else f"{rounded(context.calls(rows), 4)} operators"  # fmt: skip
    yield context.finding(
        f"{name or 'The optimizer'} updates the weights {form}: {number} per step.",
        advice,
        kernels if context.has_device else rows,
        _gain(context, rows, updates),
        patch=context.patch("optimizer", name, **_options(context, name)),
    )


def _form(context: RuleContext, looped: bool) -> str:
    if context.is_jax:  # one compiled program, even if Python looped when it was traced
        return "one parameter at a time"
    return "one parameter at a time (a Python loop)" if looped else "with many kernels"


def _class_of(context: RuleContext, updates: Rows) -> str:
    """The class of the optimizer that takes most of the time; empty if unknown."""
    if not len(updates):
        return ""
    longest = updates[int(context.events["duration_ns"][updates].argmax())]
    found = _CLASS.match(context.name(int(longest)))
    return found[1] if found else ""


def _libraries(name: str) -> dict[str, str]:
    return LIBRARIES if name in ("", "Adam", "AdamW") else {}


def _advice(context: RuleContext, name: str, looped: bool) -> str:
    """The option that this class takes and that helps; empty if there is none."""
    if name in FUSED:
        return f"Create the optimizer with fused=True: torch.optim.{name}(..., fused=True)."
    if name in FOREACH:
        if looped and context.has_device:
            return f"Create the optimizer with foreach=True: torch.optim.{name}(..., foreach=True)."
        return ""  # on a CPU foreach is a loop too
    if not name:
        return (
            "Use Adam, AdamW, SGD or Adagrad of torch.optim with fused=True, or compile the "
            "function that updates the weights with torch.compile."
        )
    if not looped:
        return ""
    return (
        "Compile the step of the optimizer: step = torch.compile(optimizer.step); or use Adam, "
        "AdamW, SGD or Adagrad of torch.optim with fused=True."
    )


def _options(context: RuleContext, name: str) -> dict[str, str | None]:
    """The arguments that `_advice` means, for a class that takes them."""
    if name in FUSED:
        return {"foreach": None, "fused": "True"}
    return {"foreach": "True"} if name in FOREACH and context.has_device else {}


def _gain(context: RuleContext, rows: Rows, updates: Rows) -> Gain:
    evidence = updates if len(updates) else rows
    if context.whatif("fused_optimizer"):
        return context.gain(evidence, "fused_optimizer")
    if len(updates) and not context.has_device:
        return context.bound(context.ms(updates), "at most the time of the update")
    note = "at most: with an update that takes no time"
    return context.gain(evidence, "scale:select=stage=optimizer,factor=0", note=note)
