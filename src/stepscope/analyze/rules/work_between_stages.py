"""`work_between_stages`: operators outside of forward, backward and optimizer."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.python_stalls import sampled_line
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Mask, Rows
from stepscope.base.numbers import rounded

LEAST = 0.1  # of the step
_NAMED = 3  # operators that the sentence names
_NO_WORK = r"^(aten::(item|_local_scalar_dense)$|record_param_comms|c10d|gloo:|nccl:)"  # have own rules
_COPIES = r"^aten::(to|_to_copy|copy_)$"  # part of such work, but alone may be of a batch
ADVICE = "Compute statistics, metrics or averages of weights every N steps, of fewer tensors, or in one call"


def work_between_stages(context: RuleContext) -> Iterator[Finding]:
    """Operators that belong to no stage of training, on a CPU.

    Such as histograms of weights, metrics, or an average of the weights.

    Silent below 10 % of the step without copies, on devices, where no backward pass or no update of
    the weights is recognized (it may be among them), and about .item(), communication and calls of
    what is trained, as in a rollout.
    """
    stage = context.trace.events.text("stage")
    trains = stage.mask("backward").any() and stage.mask("optimizer").any()
    if context.measures.has_device or context.context_trace or not trains:
        return
    rows = np.setdiff1d(context.search.outermost(_in_no_stage(context)), context.search.find(_NO_WORK))
    rows = rows[~_are_of_the_model(context, rows)]
    if context.measures.share(np.setdiff1d(rows, context.search.find(_COPIES))) < LEAST:
        return
    share, spent = context.measures.share(rows), context.measures.ms(rows)
    line = sampled_line(context, spent)
    where = f" Most is in {line}." if line else context.main_place(rows)
    gone = max(context.eager.ms(context.eager.around(rows)), spent)
    bound = context.gains.bound(gone, "at most their time, with the Python between", sure=MOSTLY_SAVED)
    yield context.finding(
        f"Operators outside forward, backward and optimizer take {rounded(spent)} ms per step ({share:.0%})."
        f"{where} Longest: {longest_operators(context, rows)}.",
        context.advice(f"{ADVICE} (torch._foreach_…).", jax=f"{ADVICE} (jax.jit)."),
        rows,
        context.gains.unsure(bound, context.search.within(rows)),
    )


def _in_no_stage(context: RuleContext) -> Rows:
    """Operators outside of the stages, but no loop of a compiled program around some in stages."""
    rows, every = (context.search.find(category="cpu_op", stage=stage) for stage in ("other", ()))
    return rows[~context.search.holding(np.setdiff1d(every, rows))[rows]]


def _are_of_the_model(context: RuleContext, rows: Rows) -> Mask:
    module = context.events["module"]
    reached = module[context.events.text("stage").mask("backward") & (module >= 0)]
    return np.isin(module[rows], reached)


def longest_operators(context: RuleContext, rows: Rows) -> str:
    """The operators with most of the time of `rows`, in words: `aten::mul twice, aten::add once`."""
    names = context.events["name"][rows]
    spent = np.bincount(names, context.events["duration_ns"][rows])
    order = np.argsort(-spent)[:_NAMED]
    chosen = [rows[names == code] for code in order[spent[order] > 0].tolist()]
    return ", ".join(f"{context.search.name(int(one[0]))} {context.times(one)}" for one in chosen)
