"""`zero_grad_memset`: gradients are filled with zeros instead of released."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.exchange_per_pass import backward_passes, pass_of
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded

LARGE_BYTES = 1 << 19  # on a CPU such blocks return to the system, and page faults cost more
_ZEROING = r"^aten::(zero_|fill_|_foreach_zero_|mul_)$"


def zero_grad_memset(context: RuleContext) -> Iterator[Finding]:
    """Gradients filled with zeros, which the next backward pass reads and adds to.

    Silent if gradients are released (set_to_none, the default since PyTorch 2.0), if nothing
    marks the zeroing of gradients, and on a CPU if a layer has parameters of 512 KiB or more: its
    gradients would be allocated from the system in each step.
    """
    rows = context.search.outermost(context.search.find(_ZEROING, stage="zero_grad", category="cpu_op"))
    if not len(rows) or (not context.measures.has_device and _largest_layer(context) >= LARGE_BYTES):
        return
    calls = context.measures.calls(rows)
    yield context.finding(
        f"{rounded(calls, 4)} operators per step fill gradients with zeros."
        if calls > 1
        else "Each step fills gradients with zeros.",
        "Release gradients instead: optimizer.zero_grad(set_to_none=True), the default since "
        "PyTorch 2.0. Backward then writes them instead of reading and adding.",
        rows,
        _gain(context, rows),
    )


def _largest_layer(context: RuleContext) -> int:
    """Bytes of the parameters of the largest module without children; 0 if unknown."""
    modules = context.trace["modules"]
    return int(modules["parameter_bytes"][~np.isin(modules["id"], modules["parent"])].max(initial=0))


def _gain(context: RuleContext, rows: Rows) -> Gain:
    """Without the zeroing, and without adding to the zeros, as the first pass after it does."""
    accumulating = context.search.find("AccumulateGrad$", stage="backward", on_device=False)
    passes, _ = backward_passes(context)
    first = np.diff(np.searchsorted(context.events["start_ns"][rows], passes), prepend=-1) > 0
    accumulating = accumulating[np.append(first, True)[pass_of(context, accumulating, passes)]]
    added = context.search.find(r"^aten::add_$", stage="backward", inside=accumulating)
    both = np.union1d(rows, context.search.outermost(added))
    gain = context.gains.scaled(both, 0.0, "if gradients were neither zeroed nor added to")
    return gain if context.measures.has_device else context.gains.unsure(gain, context.search.within(both))
