"""`low_utilization`: products that run far below what the device can do."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.kernel_names import short_kernel
from stepscope.base.numbers import rounded
from stepscope.trace.schema import PRODUCT_KINDS

CAUSE = "products"
LOW = 0.25  # of the roofline
REACHABLE = 0.6  # of the roofline, by well-shaped products of the vendors' libraries
LEAST_NS = 10_000  # shorter kernels are bound by their launch
MOST_FINDINGS = 2  # kernels, the longest
DECISIVE = {"convolution": slice(0, 2), "attention": slice(-1, None)}  # channels, sizes of heads


def low_utilization(context: RuleContext) -> Iterator[Finding]:
    """Matrix products, convolutions and attention that reach less than 25 % of the roofline.

    Silent if the peak rates of the device or the shapes are unknown, below 5 % of the step, and
    for kernels shorter than 10 µs. `--device NAME` names the device if the file does not.
    """
    if not context.measures.has_device or context.context_trace:
        return
    rows = context.search.find(kind=PRODUCT_KINDS, on_device=True)
    time = context.events["duration_ns"][rows].astype(np.float64)
    bound = context.measures.roofline(rows).least_ns
    low = (bound > 0) & (bound < LOW * time) & (time >= LEAST_NS)
    rows, time, bound = rows[low], time[low], bound[low]
    names = context.events["name"][rows]
    for code in np.argsort(-np.bincount(names, time))[:MOST_FINDINGS].tolist():
        of = names == code
        if not of.any() or context.measures.is_small(context.measures.ms(rows[of])):
            continue
        used = float(bound[of].sum() / time[of].sum())
        reason, advice = _reason(context, rows[of])
        factor = np.clip(bound[of] / REACHABLE / time[of], 0.0, 1.0)
        yield context.finding(
            f"{short_kernel(context.search.name(int(rows[of][0])), 50)} reaches {used:.0%} of the roofline, "
            f"{rounded(context.measures.ms(rows[of]))} ms per step. {reason}.{context.main_place(rows[of])}",
            advice,
            rows[of],
            context.gains.scaled(rows[of], factor, f"if it reached {REACHABLE:.0%} of the roofline"),
        )


def _reason(context: RuleContext, rows: Rows) -> tuple[str, str]:
    """Why it is slow, and what to do."""
    multiprocessors = int(context.measures.device_facts().get("numSms") or 0)
    blocks = [_blocks(arguments.get("grid")) for arguments in context.trace.arguments_of(rows[:64])]
    most = max(blocks, default=0)
    if 0 < most < multiprocessors:
        return (
            f"Its {most} thread blocks leave most of the {multiprocessors} multiprocessors idle",
            "Use a larger batch, or combine several small products into one (torch.bmm, a wider layer).",
        )
    bounds = context.measures.roofline(rows)
    if np.nansum(bounds.moving_ns) > np.nansum(bounds.computing_ns):
        return (
            "It moves more bytes than its arithmetic can hide",
            "Use a larger batch or wider layers, so that weights are read for more rows at a time.",
        )
    if _has_suitable_sizes(context, rows):
        return (
            "Nothing recorded explains it: its sizes are multiples of 64",
            "Try another implementation: a newer library, or another backend of attention.",
        )
    return (
        "Its shape or layout suits no fast kernel",
        "Use dimensions that are multiples of 64 and contiguous inputs; keep one layout "
        "(channels_last for convolutions).",
    )


def _has_suitable_sizes(context: RuleContext, rows: Rows) -> bool:
    """Whether the sizes of all operands that decide how fast a kernel is are known, and suit one."""
    operators = context.search.operator_of(rows).astype(np.int64)
    kind = context.events.text("kind")[int(rows[0])] or ""
    shapes = context.search.each_shapes(operators[operators >= 0], lambda shapes: shapes)
    part, first = DECISIVE.get(kind, slice(-2, None)), int(kind == "convolution")  # its input has any size
    operands = (shape for each in shapes for shape in each[first:3] if len(shape) > 1)  # a bias has one
    sizes = [size for shape in operands for size in shape[part]]
    return bool(sizes) and not any(size % 64 for size in sizes)


def _blocks(grid: object) -> int:
    """The blocks of a launch, 0 if its grid is not recorded as a list of sizes."""
    if isinstance(grid, list) and grid and all(isinstance(size, int) for size in grid):
        return int(np.prod(grid))
    return 0
