"""`optimizer_loop`: the optimizer updates weights one by one, or with many kernels."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.models.whatif.parts.layers import FUSIBLE, optimizer_class
from stepscope.trace.schema import PRODUCT_KINDS

CAUSE = "optimizer"
EXPLAINS = ("host", "launch")
_MOST_CLASSES = 16  # chosen: more than any training has; each takes time in proportion to all events
MANY = 30  # operators per step, or kernels: a fused update has a few
_FUSED = r"_fused_|[Ff]used_?(Adam|SGD|LAMB|Adagrad|adam|sgd)|FusedOptimizer"
_FOREACH = r"^aten::_foreach_"
_STEP = r"^Optimizer\.step#"
_UPDATE = rf"{_STEP}(?!LBFGS\.|SparseAdam\.)"
# What torch.optim takes for each class: PyTorch 2.x, `help(torch.optim.Adam)` and so on.
FOREACH = (*FUSIBLE, "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
LIBRARIES = {
    "transformers": "Set optim='adamw_torch_fused' in TrainingArguments.",
    "timm": "Run with --opt adamw and --opt-kwargs fused=True.",
}
_NOT_ELEMENTWISE = ("gemm", "convolution", "attention", "reduction", "communication")
JAX = (
    "Update all weights as one vector (wrap the optimizer in optax.flatten). Keep the update "
    "inside the jax.jit of the step."
)


def optimizer_loop(context: RuleContext) -> Iterator[Finding]:
    """An optimizer that is not fused: a loop over the parameters, or many kernels for all of them.

    Silent if a fused optimizer runs, if the optimizer calls fewer than 30 operators per step (on a device:
    launches fewer kernels), if nothing marks the optimizer, and if its class has no faster implementation.
    Gradient clipping does not count if the update itself is marked, nor do LBFGS, which updates all
    parameters as one vector, and SparseAdam, for whose gradients there is no other. In a program of XLA only
    elementwise operations that take a weight, or what the optimizer keeps of it, count: one vector of all
    weights changes nothing for norms, clipping and sums over the gradients of single examples.
    """
    updates = context.search.find(_UPDATE)
    around = context.events["parent"][updates]  # one that only calls others updates nothing itself
    updates = updates[~context.search.holding(around[around >= 0])[updates]]
    if not len(updates):
        if not len(context.search.find(_STEP)):
            yield from _slow_update(context, (), None)
        return
    for names, own in _by_form(context, updates):
        yield from _slow_update(context, names, own)


def _by_form(context: RuleContext, updates: Rows) -> list[tuple[tuple[str, ...], Rows]]:
    """The longest classes with their updates: each by itself, and those that torch.optim fuses as one."""
    of_class: dict[str, list[int]] = {}
    for row in updates.tolist():
        of_class.setdefault(optimizer_class(context.search.name(row)), []).append(row)
    time = context.events["duration_ns"]
    ordered = sorted(of_class, key=lambda name: -int(time[of_class[name]].sum()))[:_MOST_CLASSES]
    fusible = tuple(name for name in ordered if name in FUSIBLE)
    groups = [(name,) for name in ordered if name not in FUSIBLE] + [fusible] * bool(fusible)
    return [(names, np.sort(np.concatenate([of_class[one] for one in names]))) for names in groups]


def _slow_update(context: RuleContext, names: tuple[str, ...], updates: Rows | None) -> Iterator[Finding]:
    """A finding on some classes and their updates; both unknown if the trace marks none."""
    if len(context.search.find(_FUSED, stage="optimizer", inside=updates)):
        return
    calls = context.search.find(stage="optimizer", category="cpu_op", inside=updates)
    rows = context.search.innermost_operators(calls)
    kernels = context.search.find(stage="optimizer", category="kernel", on_device=True, inside=updates)
    all_work, unit = (kernels, "kernels") if context.measures.has_device else (rows, "operators")
    work = _of_weights(context, all_work)
    if context.measures.calls(work) < MANY:
        return
    looped = not len(context.search.find(_FOREACH, stage="optimizer", inside=updates))
    libraries = LIBRARIES if not names or {"Adam", "AdamW"} & set(names) else {}
    advice = context.advice(_advice(context, names, looped), jax=JAX, **libraries)
    if not advice:
        return
    number = f"{rounded(context.measures.calls(work), 4)} {unit}"
    yield context.finding(
        f"{_subject(names)} the weights {_form(context, looped)} {number} per step.",
        advice,
        work,
        _gain(context, names, work, updates, partly=len(work) < len(all_work)),
        patch=context.patch("optimizer", (*names, "")[0], **_options(context, names)),
    )


def _of_weights(context: RuleContext, rows: Rows) -> Rows:
    """Those of XLA's operations that update weights or their state; all where that is unknown."""
    inputs, events = context.trace["inputs"], context.events
    of_argument = inputs["first"][inputs.text("argument").codes >= 0]
    takes = np.isin(events["origin"][rows], of_argument)
    return rows[takes & ~events.text("kind").mask(*_NOT_ELEMENTWISE)[rows]] if takes.any() else rows


def _subject(names: tuple[str, ...]) -> str:
    if len(names) > 1:
        return f"{' and '.join(names)} update"
    return f"{(*names, '')[0] or 'The optimizer'} updates"


def _form(context: RuleContext, looped: bool) -> str:
    if context.is_jax or not context.has_advice:  # compiled, even if Python looped in the trace
        return "one parameter at a time. It starts"
    return "one parameter at a time. A Python loop starts" if looped else "with many kernels. It starts"


def _advice(context: RuleContext, names: tuple[str, ...], looped: bool) -> str:
    """The option that these classes take and that helps; empty if there is none."""
    if names and names[0] in FUSIBLE:
        made = " and ".join(f"torch.optim.{name}(..., fused=True)" for name in names)
        return f"Create the optimizer{'s' * (len(names) > 1)} with fused=True: {made}."
    name = (*names, "")[0]
    if name in FOREACH:
        if looped and context.measures.has_device:
            return f"Create the optimizer with foreach=True: torch.optim.{name}(..., foreach=True)."
        return ""  # on a CPU foreach is a loop too
    if not name:
        return (
            "Use Adam, AdamW, SGD or Adagrad of torch.optim with fused=True. Or compile the "
            "function that updates the weights with torch.compile."
        )
    if not looped:
        return ""
    return (
        "Compile the step of the optimizer: step = torch.compile(optimizer.step). Or use Adam, "
        "AdamW, SGD or Adagrad of torch.optim with fused=True."
    )


def _options(context: RuleContext, names: tuple[str, ...]) -> dict[str, str | None]:
    """The arguments that `_advice` means, for a class that takes them."""
    if names and names[0] in FUSIBLE:
        return {"foreach": None, "fused": "True"}
    return {"foreach": "True"} if names and names[0] in FOREACH and context.measures.has_device else {}


def _gain(
    context: RuleContext, names: tuple[str, ...], work: Rows, updates: Rows | None, partly: bool
) -> Gain:
    """What a fused update saves; `partly` is whether the stage does more than `work`."""
    if partly:
        ms = context.measures.elapsed_ms(work)
        return context.gains.without(work, ms, "at most the time of the update")
    evidence = work if updates is None else updates
    if (not names or names[0] in FUSIBLE) and context.gains.whatif("fused_optimizer"):
        return context.gains.gain(evidence, "fused_optimizer")
    others = updates is not None and len(updates) < len(context.search.find(_UPDATE))
    if updates is not None and (others or not context.measures.has_device):
        ms = context.measures.ms(work) if context.measures.has_device else _own_ms(context, updates)
        products = context.search.find(kind=PRODUCT_KINDS, stage="optimizer", inside=updates)
        left = min(context.measures.ms(products), ms)  # as of Muon, which no compiler shortens
        return context.gains.bound(ms - left, "at most the time of the update without its products")
    most = "at most: with an update that takes no time"
    return context.gains.gain(evidence, "scale:select=stage=optimizer,factor=0", at_most=most)


def _own_ms(context: RuleContext, updates: Rows) -> float:
    """Time of the updates, ms per step, without what a closure runs in them."""
    if context.context_trace:
        return context.measures.ms(updates)
    own = context.measures.spans(updates).intersect(context.measures.stage_spans("optimizer"))
    return context.measures.per_step(own.total())
