"""`work_without_gradient`: operators of the forward pass that train nothing."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.slow_function import COMPUTING, DRAWING, DRAWS
from stepscope.analyze.rules.work_between_stages import longest_operators
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import MODEL_STAGES, PRODUCT_KINDS

BESIDES = 0.5  # of it: memory that they take and return; a graph network saved 1.2 times it, a bank 1.5
LEAST = 0.1  # of the step, as for operators between the stages
LEAST_LINKED = 0.9  # of the products of what trains: backward passes of most networks reach all
# Noise is new in each step; copies, reads and communication have rules of their own.
_OTHERS = (
    r"^aten::(to|_to_copy|item|_local_scalar_dense|randn?|randint|randperm|rand_like|randn_like|randint_like"
    r"|normal_?|uniform_|bernoulli_?|exponential_|multinomial|dropout)$|^_?c10d"
)
WHY = "at most their time, with the Python between"


def work_without_gradient(context: RuleContext) -> Iterator[Finding]:
    """Operators of the forward pass through which no gradient flows, on a CPU.

    Such as masks and tables that are made again in each step, or a copy of a large buffer.

    Silent below 10 % of the step, on devices, in JAX, where backward is not linked to forward, and about
    random numbers, matrix products, and modules that run without gradients as a whole, as of a teacher.
    """
    if context.measures.has_device or context.is_jax or context.context_trace or not context.trains:
        return
    rows = _without_gradient(context)
    spent = min(context.eager.ms(context.eager.around(rows)), context.measures.steady_ms)
    if not len(rows) or spent < LEAST * context.measures.steady_ms:
        return
    yield context.finding(
        f"Forward operators that train nothing take {rounded(spent)} ms per step "
        f"({spent / context.measures.steady_ms:.0%}).{context.main_place(rows)} "
        f"Longest: {longest_operators(context, rows)}.",
        DRAWING if DRAWS.search(context.main_place(rows)) else COMPUTING,
        rows,
        context.gains.unsure(
            context.gains.bound(spent, WHY, BESIDES, MOSTLY_SAVED), context.search.within(rows)
        ),
    )


def _without_gradient(context: RuleContext) -> Rows:
    """Outermost operators of forward and loss; in no module call that has products and trains nothing."""
    search = context.search
    trained = search.trained()
    rows = np.intersect1d(search.find(stage=(*MODEL_STAGES, "loss"), category="cpu_op"), context.eager.rows)
    products = search.find(kind=(*PRODUCT_KINDS, "attention"), category="cpu_op")
    others = search.find(_OTHERS, category="cpu_op")  # a sum or a solver may convert numbers inside
    rows = np.setdiff1d(rows[~(trained | search.holding(products))[rows]], others)
    calls = search.module_calls
    frozen = search.within(calls[search.holding(products)[calls] & ~trained[calls]])
    outer = search.outermost(products)  # a sparse one calls others
    outer = np.setdiff1d(outer, search.find(stage="optimizer"))  # LBFGS and Muon have their own
    linked = trained[outer[~frozen[outer]]]
    if not len(linked) or linked.mean() < LEAST_LINKED:
        return rows[:0]  # what leads back to forward is not recorded
    return rows[~frozen[rows]]
