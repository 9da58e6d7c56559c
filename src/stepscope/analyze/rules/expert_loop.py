"""`expert_loop`: a mixture of experts computes one expert after the other."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Floats, Rows
from stepscope.base.numbers import plural, rounded
from stepscope.trace.row_order import place_in_group, rows_by_key
from stepscope.trace.schema import MODEL_STAGES

CAUSE = "experts"
EXPLAINS = ("host", "launch")
MANY = 8  # products per step
WEIGHTS = 4  # of one shape: mixtures have 4 experts or more
SAME = 4  # products in a row with as many rows: an expert has 2 or 3, the layers of a network more
UNEVEN = 2.0  # the busiest expert over the mean
GROUPED = 0.8  # of the calls saved at least; grouping 256 tokens by 8 experts saved 0.97 of them
AT_MOST = "all calls of the loop and of its backward pass, at most"
CHEAP = 0.1  # of the calls: those of few rows, which are overhead
_PRODUCT = r"^aten::(mm|addmm|linear|bmm)$"
_GATHER = r"^aten::(index|index_select|index_add_?|index_put_?|scatter_add_?|gather)$"
_GROUPED = r"(?i)grouped_?(mm|gemm)|ragged_dot|megablocks|fused_moe|gmm_kernel"
EXPERT = re.compile(r"(?i)(^|[./_])experts?[./_]?\d+")
LIBRARIES = {"transformers": "Load the model with experts_implementation='grouped_mm' (transformers 5)."}
ADVICE = (
    "Sort the tokens by expert and multiply them in one call: torch.nn.functional.grouped_mm "
    "(torch._grouped_mm before PyTorch 2.10), or MegaBlocks."
)
BALANCE = (
    "Balance the experts (an auxiliary loss, a capacity factor): with experts on several devices, "
    "all wait for the busiest."
)
BALANCE_INFERENCE = (
    "Place the busiest experts on several devices: with experts on several devices, all wait for the busiest."
)
JAX = "Sort the tokens by expert and multiply them in one call: jax.lax.ragged_dot."


def expert_loop(context: RuleContext) -> Iterator[Finding]:
    """Products of experts in a loop, each with the tokens of one expert, instead of one call.

    Experts show in the paths of modules or scopes (`experts.3`), else in products of weights of one
    shape with different numbers of rows, with indexing between them.

    Silent for fewer than 8 of them per step, and if a grouped product runs.
    """
    if len(context.search.find(_GROUPED)):
        return
    rows, tokens = _products(context)
    if context.measures.calls(rows) < MANY:
        return
    known = tokens[tokens > 0]
    uneven = float(known.max() / known.mean()) if len(known) else 1.0
    advice = context.advice(ADVICE, jax=JAX, **LIBRARIES)
    balance = BALANCE if context.trains else BALANCE_INFERENCE
    yield context.finding(
        f"Experts run one after the other: {rounded(context.measures.calls(rows), 4)} matrix "
        f"products per step.{_rows_in_words(known, uneven)}{context.main_place(rows)}",
        f"{advice} {balance}" if uneven >= UNEVEN else advice,
        rows,
        _gain(context, rows, known),
        recurs=context.measures.has_device,  # else not the products alone, but all that a step calls
    )


def _rows_in_words(tokens: Floats, uneven: float) -> str:
    if not len(tokens):
        return ""
    least, most = int(tokens.min()), int(tokens.max())
    spread = f" They have {least} to {most} rows" if least < most else f" Each has {plural(most, 'row')}"
    return spread + (f" (the busiest {rounded(uneven, 2)} times the mean)." if uneven >= UNEVEN else ".")


def _products(context: RuleContext) -> tuple[Rows, Floats]:
    """The products of experts in the forward pass, and the rows of each (0 if unknown)."""
    if context.is_jax:
        rows = context.search.find(kind="gemm")
        scope = context.events.text("scope").take(rows)
        rows = rows[scope.where(lambda text: bool(EXPERT.search(text)))]
        return rows, np.zeros(len(rows))
    rows = context.search.outermost(context.search.find(_PRODUCT, category="cpu_op", stage=MODEL_STAGES))
    if not len(rows):
        return rows, np.zeros(0)
    shapes = context.search.each_shapes(rows, _rows_and_weight)
    tokens = np.array([float(one) for one, _ in shapes])
    modules = context.trace["modules"]
    module = context.events["module"][rows]
    paths = [modules.text("path")[one] or "" if one >= 0 else "" for one in module.tolist()]
    named = np.array([bool(EXPERT.search(path)) for path in paths])
    if named.any():
        return rows[named], tokens[named]
    routed = _routed(context, rows, shapes)
    return rows[routed], tokens[routed]


def _routed(context: RuleContext, rows: Rows, shapes: list[tuple[int, tuple[int, ...]]]) -> list[int]:
    """Products of several weights of one shape with many numbers of rows, with indexing between them.

    Layers that all take the rows of one batch are no experts, nor is a module that is called for
    one sample after the other: its calls have the same weights.
    """
    gathers = context.measures.calls(context.search.find(_GATHER, category="cpu_op", stage=MODEL_STAGES))
    call = context.search.enclosing(context.search.module_calls)[rows]
    module = context.events["module"][rows].astype(np.int64) * len(rows) + place_in_group(call)
    weights = np.where(call >= 0, module, -1 - np.arange(len(rows))).tolist()
    groups = defaultdict[tuple[int, tuple[int, ...]], list[int]](list)
    for place, (step, (tokens, weight)) in enumerate(
        zip(context.events["step"][rows].tolist(), shapes, strict=True)
    ):
        if tokens:
            groups[(step, weight)].append(place)
    varied = [
        places
        for places in groups.values()
        if _vary([shapes[one][0] for one in places]) and len({weights[one] for one in places}) >= WEIGHTS
    ]
    chosen = sorted(place for places in varied for place in places)
    return chosen if gathers * 4 >= len(chosen) / context.step_count else []


def _vary(tokens: list[int]) -> bool:
    """Whether there are many numbers of rows, and enough products have another one than that before."""
    return len({*tokens}) >= MANY and SAME * sum(a != b for a, b in pairwise(tokens)) >= len(tokens)


def _rows_and_weight(shapes: list[list[int]]) -> tuple[int, tuple[int, ...]]:
    matrices = [shape for shape in shapes if len(shape) == 2]
    return (matrices[0][0], tuple(matrices[1])) if len(matrices) > 1 else (0, ())


def _gain(context: RuleContext, rows: Rows, tokens: Floats) -> Gain:
    """One call for all experts of a step, which runs as long as before or as its longest part."""
    calls = np.union1d(rows, context.search.backward_of(rows))
    if not context.measures.has_device:
        return _gain_on_cpu(context, rows, calls, varies=len(np.unique(tokens)) > 1)
    work = context.search.find(inside=calls, on_device=True)
    device, cpu = context.measures.ms(work), context.measures.ms(calls)
    once = cpu / max(context.measures.calls(rows), 1.0)
    longest = float(context.events["duration_ns"][work].max(initial=0)) / 1e6
    low, high = (max(device, cpu) - max(once, time) for time in (device, longest))
    bound = context.gains.bound(high, "at most: if the products of all experts ran side by side")
    return replace(bound, range_ms=(max(min(low, bound.ms), 0.0), bound.ms))


def _gain_on_cpu(context: RuleContext, rows: Rows, products: Rows, varies: bool) -> Gain:
    """All that the loop calls, but once for each expert, or once for all; products of many rows stay.

    What products of more rows than others take longer is computing, which grouped ones do as well;
    `varies` is whether there are any.
    """
    number = len(rows)
    if context.context_trace:
        return context.gains.bound(context.measures.ms(products), AT_MOST)
    loops_ms = context.eager.elapsed_ms(context.eager.of_loops(rows))
    calls = max(loops_ms - varies * _computing_ms(context, products), 0.0)
    experts = min(len(np.unique(context.events["module"][rows])) * context.step_count, number)
    high = calls * (1 - context.step_count / number)
    low = calls * (1 - experts / number) * GROUPED
    bound = context.gains.bound(high, AT_MOST)
    return replace(bound, range_ms=(min(low, bound.ms), bound.ms))


def _computing_ms(context: RuleContext, products: Rows) -> float:
    """What products take longer than those of their name with few rows, by the median one."""
    each, names = context.measures.each_ns(products), context.events["name"][products]
    longer = 0.0
    for rows in rows_by_key(names).values():
        same = each[rows]
        longer += len(same) * float(np.median(same) - np.quantile(same, CHEAP))
    return context.measures.per_step(longer)
