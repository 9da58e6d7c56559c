"""`frequent_evaluation`: evaluation takes a large share of the training time."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import WHOLE
from stepscope.analyze.rule_context import RuleContext, finding_of_part, share_of_run
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import PRODUCT_KINDS

EXPLAINS = ("host", "synchronization")
LEAST = 0.2  # of the recorded time
_NAMES = (
    r"(?i)(?<![a-z])(evaluate|evaluation(_loop|_step|_epoch)?|run_eval\w*"
    r"|validate|validation(_loop|_step|_epoch)?|eval_(step|epoch|loop))(?![a-z])"
)
ADVICE = "Evaluate less often, on fewer batches, and under torch.inference_mode()."
JAX = "Evaluate less often, or on fewer batches."
LIBRARIES = {
    "transformers": "Raise eval_steps in TrainingArguments.",
    "lightning": "Raise val_check_interval or check_val_every_n_epoch, or lower limit_val_batches.",
    "timm": "Raise --val-interval.",
}


def frequent_evaluation(context: RuleContext) -> Iterator[Finding]:
    """Evaluation that takes 20 % or more of the run, or of the recorded time.

    Silent if no function or range has such a name, if what it runs has a backward pass, if it runs
    no model, and in a script that does nothing else; programs of JAX that run what is trained,
    without differentiating it, need no name.
    """
    advice = context.advice(ADVICE, jax=JAX, **LIBRARIES)
    if share_of_run(context, "evaluation"):  # the whole run tells more than its recorded steps
        yield from finding_of_part(context, "evaluation", "Evaluation takes", advice, LEAST)
        return
    rows = _evaluations(context)
    if not len(rows) and context.is_jax:
        work = context.search.find(stage="evaluation", on_device=True)
        calls = context.search.find(stage="evaluation", category="cpu_op", on_device=False)
        rows = work if len(work) else context.search.outermost(calls)
    spent = context.measures.longer_side_ms(rows)
    work = context.search.find(inside=rows, on_device=True)
    share = context.measures.part_of_step(np.union1d(rows, work), spent)
    if not len(rows) or share < LEAST or (share >= WHOLE and not context.trains):
        return
    yield context.finding(
        f"Evaluation takes {share:.0%} of the recorded time, "
        f"{rounded(share * context.measures.steady_ms)} ms per step.{context.main_place(rows)}",
        advice,
        rows,
        context.gains.without(rows, share * context.measures.steady_ms, "at most this time"),
        recurs=False,
    )


def _evaluations(context: RuleContext) -> Rows:
    """The calls of such a name that run a model and train none: a name alone is no evidence."""
    search = context.search
    rows = search.find_functions(_NAMES)
    rows = rows[~search.trained()[rows]]
    if context.is_jax:
        return rows
    model = search.events["module"] >= 0
    model |= search.events.text("kind").mask(*PRODUCT_KINDS, "attention")
    return rows[np.isin(rows, search.enclosing(rows)[np.flatnonzero(model)])]
