"""`optimizer_loop`: the weights are updated one by one, or by many kernels."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.subject import Rows, Subject

MANY = 30
_FUSED = r"_fused_|[Ff]used_?(Adam|SGD|LAMB|Adagrad|adam|sgd)|FusedOptimizer"
_FOREACH = r"^aten::_foreach_"
_STEP = r"^Optimizer\.step#"
_UPDATE = rf"{_STEP}(?!LBFGS\.)"
JAX = (
    "Update all weights as one vector (optax.flatten around the optimizer), and keep the update "
    "under the jax.jit of the step."
)


def optimizer_loop(subject: Subject) -> Iterator[Finding]:
    """An optimizer that is not fused: a for-loop over the parameters, or many kernels for all.

    Silent where an operator or kernel of a fused optimizer runs, where the optimizer calls fewer
    than 30 operators a step (and launches fewer kernels), and where nothing marks the optimizer.
    Clipping of gradients is not counted where the update itself is marked, nor is LBFGS, which
    works on all parameters as one vector.
    """
    updates = subject.find(_UPDATE)
    marked = len(subject.find(_STEP)) > 0
    if len(subject.find(_FUSED, stage="optimizer")) or (marked and not len(updates)):
        return
    inside = updates if marked else None
    calls = subject.find(stage="optimizer", category="cpu_op", inside=inside)
    rows = subject.innermost_operators(calls)
    kernels = subject.find(stage="optimizer", category="kernel", on_device=True, inside=inside)
    looped = not len(subject.find(_FOREACH, stage="optimizer", inside=inside))
    if subject.calls(kernels if subject.has_device else rows) < MANY:
        return
    form = "one parameter after the other (a for-loop)" if looped else "for all parameters at once"
    number = f"{subject.calls(kernels):.4g} kernels" if subject.has_device \
        else f"{subject.calls(rows):.4g} operators"  # fmt: skip
    first = "fused=True, or foreach=True where that is not supported" if looped else "fused=True"
    yield subject.finding(
        f"The optimizer updates the weights {form}: {number} a step.",
        subject.in_words(
            f"Create the optimizer with {first} (Adam, AdamW, SGD and Adagrad of torch.optim); for "
            "another optimizer torch.compile its step.",
            jax=JAX,
        ),
        kernels if subject.has_device else rows,
        _gain(subject, rows, updates),
    )


def _gain(subject: Subject, rows: Rows, updates: Rows) -> Gain:
    if found := subject.whatif("fused_optimizer"):
        return found
    if len(updates) and not subject.has_device:
        return subject.bound(subject.ms(updates), "at most the time of the update")
    note = "at most: an update that costs nothing"
    return subject.gain(rows, "scale:select=stage=optimizer,factor=0", note=note)
