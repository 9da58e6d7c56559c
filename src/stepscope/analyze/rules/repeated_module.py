"""`repeated_module`: a module is called for one row or task after the other."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.expert_loop import EXPERT
from stepscope.analyze.rules.recurrent_loop import CELL
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.sets import mask_of

CAUSE = "experts"
MANY = 16  # calls per step, as of a recurrent cell
SMALL_NS = 20_000  # as `DISPATCH_NS`: a shorter product is mostly dispatch
LEAST = 0.2  # of the step
SAVED = 0.6  # of the calls at least: 128 rows in one call saved 0.97, 48 heads 0.7
_PRODUCT = r"^aten::(mm|addmm|linear|bmm|convolution|conv[123]d)$"
STAGES = ("forward", "loss", "other")
ADVICE = (
    "If no call needs an earlier one's result, stack inputs along the batch dimension and call it "
    "once. For calls with other weights or gradients of their own, use torch.func.vmap (with "
    "torch.func.stack_module_state)."
)


def repeated_module(context: RuleContext) -> Iterator[Finding]:
    """A module with small products that is trained with 16 or more calls per step.

    Silent on devices and in JAX, for experts and recurrent cells, which have rules of their own, if
    modules are unknown, and if the calls and their backward pass take less than 20 % of the step.
    """
    if context.measures.has_device or context.is_jax or context.context_trace:
        return
    cells = context.search.find(CELL)
    rows = _products(context, cells)
    if context.measures.calls(rows) < MANY:
        return
    gain = _gain(context, rows, cells)
    if gain.ms < LEAST * context.measures.steady_ms:
        return
    yield context.finding(
        f"A module is called {rounded(_calls(context, rows), 4)} times per step with little "
        f"work each.{context.main_place(rows)}",
        ADVICE,
        rows,
        gain,
        recurs=False,  # not the products alone, but all that every step calls
        limit="warning",
    )


def _products(context: RuleContext, cells: Rows) -> Rows:
    """Small products with a backward pass, of modules that run many times in a step, but for these cells.

    One of each call of the program: aten::gru loops over its steps by itself.
    """
    search, events = context.search, context.events
    rows = search.outermost(search.find(_PRODUCT, category="cpu_op", stage=STAGES))
    rows = rows[(events["module"][rows] >= 0) & search.trained()[rows] & ~search.within(cells)[rows]]
    paths = context.trace["modules"].text("path").take(events["module"][rows])
    rows = rows[~paths.where(lambda path: bool(EXPERT.search(path)))]
    rows = rows[np.unique(search.enclosing(context.eager.rows)[rows], return_index=True)[1]]
    _, of, count = np.unique(events["module"][rows], return_inverse=True, return_counts=True)
    ordered = rows[np.lexsort((events["duration_ns"][rows], of))]
    median = ordered[np.cumsum(count) - (count + 1) // 2]  # a busy machine makes means longer
    small = events["duration_ns"][median] < SMALL_NS
    result: Rows = rows[((count >= MANY * context.step_count) & small)[of]]
    return result


def _calls(context: RuleContext, rows: Rows) -> float:
    """How often the module with most of these products runs per step."""
    return float(np.bincount(context.events["module"][rows]).max()) / context.step_count


def _gain(context: RuleContext, rows: Rows, cells: Rows) -> Gain:
    """All that the loops call, but once, and without these cells."""
    of_cells = mask_of(context.eager.around(cells), len(context.eager.rows))
    loops = context.eager.of_loops(rows) & ~context.eager.with_backward(of_cells)
    spent = context.eager.elapsed_ms(loops) * (1 - 1 / max(_calls(context, rows), 1))
    bound = context.gains.bound(spent, "all calls of the loop and of its backward pass, but one")
    ranged = replace(bound, range_ms=(SAVED * bound.ms, bound.ms))
    return context.gains.unsure(ranged, context.search.within(context.eager.rows[loops]))
