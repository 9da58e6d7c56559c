"""`element_loop`: a Python loop takes elements or rows of tensors one by one."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.repeated_module import CAUSE, LEAST, STAGES
from stepscope.base.numbers import rounded

__all__ = ["CAUSE", "element_loop"]
MANY = 32  # per step, of one operator in one module, or outside of all
_ELEMENT = r"^aten::(select|slice|narrow|unbind|index)$"
ADVICE = (
    "Where iterations do not depend on each other, compute on whole tensors: a product, broadcasting, "
    "torch.func.vmap."
)


def element_loop(context: RuleContext) -> Iterator[Finding]:
    """A loop that takes elements of tensors one by one and trains through them, as a loss over pairs.

    Silent on devices and in JAX, for fewer than 32 elements per step in each module, and if the loop and
    its backward pass take less than 20 % of the step.
    """
    if context.measures.has_device or context.is_jax or context.context_trace:
        return
    rows = context.search.outermost(context.search.find(_ELEMENT, category="cpu_op", stage=STAGES))
    rows = rows[context.search.trained()[rows]]
    keys = np.stack([context.events[one][rows] for one in ("name", "module")])
    _, place, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    rows = rows[count[place.reshape(-1)] >= MANY * context.step_count]
    if not len(rows):
        return
    loops = context.eager.of_loops(rows)
    bound = context.gains.bound(
        context.eager.elapsed_ms(loops),
        "at most all calls of the loop and of its backward pass",
        sure=MOSTLY_SAVED,
    )
    if bound.ms < LEAST * context.measures.steady_ms:
        return
    yield context.finding(
        f"Python takes {rounded(context.measures.calls(rows), 4)} parts of tensors one by one per "
        f"step.{context.main_place(rows)}",
        ADVICE,
        rows,
        context.gains.unsure(bound, context.search.within(context.eager.rows[loops])),
        recurs=False,  # not the parts alone, but all that every step calls
        limit="warning",
    )
