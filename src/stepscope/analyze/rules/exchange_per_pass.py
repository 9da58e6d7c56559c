"""`exchange_per_pass`: accumulated gradients are exchanged after each backward pass or micro-batch."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Mask, Rows, Times
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.trace.row_order import last_begun

CAUSE = "communication"
EXPLAINS = ("communication",)
LIBRARIES = {"accelerate": "Run each batch under `with accelerator.accumulate(model):`."}
_ALL_REDUCE = r"(?i)all_?reduce"
_REDUCTIONS = ("psum", "pmean", "all_reduce", "reduce_scatter")
_ACCUMULATES = r"AccumulateGrad"  # DDP reduces in hooks of these nodes, a SyncBatchNorm in its own


def exchange_per_pass(context: RuleContext) -> Iterator[Finding]:
    """DistributedDataParallel, or a loop of JAX, that exchanges gradients more than once per update.

    Silent below 5 % of the step, and unless as many all-reduces follow each backward pass: those of
    two models with one optimizer are all needed. In a compiled loop over micro-batches, those of
    layers are needed too, and belong to a pass.
    """
    yield from _of_loops(context)
    passes, last = backward_passes(context)
    calls = context.search.find(_ALL_REDUCE, category="cpu_op", inside=_hooked(context))
    calls = context.search.outermost(calls)
    if not last.any() or last.all() or not len(calls):
        return
    of_pass = pass_of(context, calls, passes)
    count = np.bincount(of_pass[of_pass >= 0], minlength=len(passes))
    early = _transfers(context, calls[~last[of_pass]], passes, last)
    is_small = context.measures.is_small(context.measures.elapsed_ms(early))
    if not len(early) or count.min() != count.max() or is_small:
        return
    yield context.finding(
        f"Gradients are exchanged after each of {rounded(len(passes) / last.sum())} backward "
        "passes per update.",
        context.advice(
            "Exchange them after the last pass alone: run forward and backward of the others under "
            "model.no_sync() of DistributedDataParallel.",
            **LIBRARIES,
        ),
        early,
        _gain(context, early, ~last[pass_of(context, _hooked(context), passes)]),
    )


def _of_loops(context: RuleContext) -> Iterator[Finding]:
    """A compiled loop over micro-batches that exchanges their gradients in each turn."""
    loops = context.trace.metadata.properties.get("program_loops", {}).values()
    most = max(loops, key=lambda one: one["micro_batches"], default={"micro_batches": 1})
    batches, outer = most["micro_batches"], most.get("steps", 1) > 1
    if batches < 2:
        return
    rows = context.search.find(kind="communication")
    turns = context.events.text("scope").where(lambda text: _turns_around(text) > outer)
    rows = rows[turns[rows]]
    if context.measures.is_small(context.measures.elapsed_ms(rows)):
        return
    yield context.finding(
        f"Gradients are exchanged after each of {batches} micro-batches of a step.",
        "Add up the gradients of all micro-batches first, and exchange their sum (jax.lax.pmean) "
        "once, after the loop.",
        rows,
        _gain_of_loop(context, rows, 1 / batches),
    )


def _gain_of_loop(context: RuleContext, rows: Rows, stays: float) -> Gain:
    """Where no device has queues, what runs on other threads at the same time is none of it."""
    if context.measures.has_device:
        return context.gains.scaled(rows, stays, "if one exchange per step stayed")
    others = context.search.find(category="cpu_op")
    others = np.setdiff1d(others[~context.search.holding(rows)[others]], rows)
    why = "at most the time in which nothing but these exchanges runs"
    return context.gains.bound((1 - stays) * context.measures.all_but_ms(others), why)


def _turns_around(scope: str) -> int:
    """The loops around a reduction over devices that belongs to no pass; 0 for all else."""
    found = scope_of(scope)
    if found.stage or not found.primitive.startswith(_REDUCTIONS):
        return 0
    return sum(one in ("scan", "while") for one in found.inside)


def _hooked(context: RuleContext) -> Rows:
    """Where DDP takes a gradient: it scales and copies it into a bucket, and starts to exchange full ones."""
    return context.search.outermost(context.search.find(_ACCUMULATES, on_device=False))


def backward_passes(context: RuleContext) -> tuple[Times, Mask]:
    """When backward passes begin, ascending, and whether each is the last of its update."""
    runs = context.trace["stages"]
    kept = runs.text("stage").mask("forward", "backward", "optimizer")
    kept &= (runs["rank"] == context.rank) & np.isin(runs["step"], context.steps["step"])
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(runs["start_ns"][rows], kind="stable")]
    stage = runs.text("stage").take(rows)
    passes = ~stage.mask("optimizer")
    update = runs["start_ns"][rows[~passes]]
    rows, backward = rows[passes], stage.mask("backward")[passes]
    begins = runs["start_ns"][rows[backward & ~np.append(False, backward[:-1])]]
    updates_before = np.searchsorted(update, begins)
    return begins, np.append(np.diff(updates_before) > 0, True)[: len(begins)]


def _transfers(context: RuleContext, calls: Rows, passes: Times, last: Mask) -> Rows:
    """What the calls start: work of the device, or of the process group's threads."""
    if context.measures.has_device:
        return context.search.find(category="communication", on_device=True, inside=calls)
    rows = context.search.find(_ALL_REDUCE, category="communication", stage="backward")
    return rows[~last[pass_of(context, rows, passes)]]


def pass_of(context: RuleContext, rows: Rows, passes: Times) -> Rows:
    """The number of the backward pass in which each event begins, or which is before it."""
    return last_begun(passes, context.events["start_ns"][rows])


def _gain(context: RuleContext, early: Rows, is_early: Mask) -> Gain:
    """On a CPU these exchanges also take cores and caches from the backward pass, and fill buckets."""
    if context.measures.has_device:
        return context.gains.scaled(early, 0.0, "if only the last pass exchanged gradients")
    rows = np.union1d(early, _hooked(context)[is_early])
    why = "at most the time of these exchanges, and of the hooks that start them"
    return context.gains.bound(context.measures.elapsed_ms(rows), why)
