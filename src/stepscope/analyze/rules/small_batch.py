"""`small_batch`: batches too small to keep the machine busy."""

from collections.abc import Iterator
from math import prod

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import find_python_stalls
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Ids, Mask, Rows
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import MODEL_STAGES, STAGES

CAUSE = "launches"
EXPLAINS = ("host", "launch")
_PRODUCTS = r"^aten::(mm|addmm|linear|convolution|_convolution|conv\dd)$"
SMALL = 8  # rows
LEAST_IDLE = 0.30  # of the step, on a device
LEAST_OVERHEAD = 0.70  # of the step, on a CPU
WORK_NS = 20_000  # as `DISPATCH_NS`: a shorter operator is mostly dispatch
ADVICE = (
    "Use larger batches (and scale the learning rate), or pack several samples into one. "
    "`stepscope batch` shows which size pays."
)
INFERENCE = "Use larger batches, or pack several samples into one."
_BUT_LOADING = tuple(stage for stage in STAGES if stage != "data_loading")


def small_batch(context: RuleContext) -> Iterator[Finding]:
    """Batches of at most 8 rows on a machine that spends most of the step on overhead.

    The batch size is the number of rows of the largest matrix product of the forward pass, or the
    number of images of a convolution.

    Silent if shapes were not recorded. On a device if it idles for less than 30 % of the step
    because of launches; on a CPU if operators of 20 µs or more and data loading take 30 %.
    """
    rows = context.search.find(_PRODUCTS, category="cpu_op", stage=MODEL_STAGES)
    sizes = context.search.each_shapes(rows, _rows_of)
    if not sizes or not 0 < max(sizes) <= SMALL:
        return
    overhead = _overhead_ms(context)
    least = LEAST_IDLE if context.measures.has_device else LEAST_OVERHEAD
    if overhead < least * context.measures.steady_ms:
        return
    bound = context.gains.bound(overhead, "per sample: the overhead is shared by more samples")
    yield context.finding(
        f"Batches have {max(sizes)} row{'s' * (max(sizes) > 1)}; "
        f"{overhead / context.measures.steady_ms:.0%} of the step is fixed overhead.",
        ADVICE if context.trains else INFERENCE,
        rows,
        # Half of it in batches of twice the size, more of the step in larger ones.
        replace(bound, range_ms=(bound.ms / 2, context.measures.steady_ms)),
        recurs=False,  # not the products, but the time around them is what it saves
    )


def _rows_of(shapes: list[list[int]]) -> int:
    """The rows of a product: all dimensions but the last; the images of a convolution."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if not matrices:
        return 0
    first = matrices[0]
    return first[0] if len(first) >= 4 else prod(first[:-1])


def _overhead_ms(context: RuleContext) -> float:
    if context.measures.has_device:
        return context.measures.recurring_ms(context.measures.launch_gaps().minus(_stalls(context)))
    calls = context.search.find(category="cpu_op", stage=_BUT_LOADING)
    own = context.events["self_ns"][calls]
    working = context.measures.per_step(own[(own >= WORK_NS) & _computes(context, calls, own)].sum())
    loading = context.search.outermost(context.search.find(stage="data_loading"))
    stalled = context.measures.per_step(_stalls(context).total())
    return float(context.measures.steady_ms - context.measures.ms(loading) - working - stalled)


def _stalls(context: RuleContext) -> Intervals:
    """Python that keeps every step at the same place, such as a sleep."""
    found = find_python_stalls(context, context.measures.python_time())
    return found.spans if found else Intervals([], [])


def _computes(context: RuleContext, calls: Rows, own: Ids) -> Mask:
    """Operators that call no other, and those that mostly work themselves.

    A convolution allocates its result with an operator of its own.
    """
    names = context.events["name"][calls]
    medians = {name: np.median(own[rows]) for name, rows in rows_by_key(names).items()}
    working = [name for name, median in medians.items() if median >= WORK_NS]
    return np.isin(calls, context.search.innermost_operators(calls)) | np.isin(names, working)
