"""`missing_kv_cache`: each new token computes the whole sequence again."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import count_within, last_begun

EXPLAINS = ("host", "launch")
MANY = 8  # calls in a row that grow by one token are no chance
MANY_IF_JOINED = 3  # where something is joined between the calls
MOSTLY = 0.5  # of the time in products
_PRODUCT = r"^aten::(linear|addmm|mm|matmul)$"
ADVICE = (
    "Keep the keys and values of earlier tokens, and give the model only the new token. That is a KV cache "
    "(use_cache=True in transformers, where it is the default of generate)."
)

Shape = tuple[int, ...]


class _GrownCall(NamedTuple):
    """A call of the model whose input is longer than that of the call before."""

    rows: tuple[int, ...]  # its products by one weight, events.id, in order
    size: int  # the length of its input, or that times the batch
    grown: int  # by how much it is longer


def missing_kv_cache(context: RuleContext) -> Iterator[Finding]:
    """Decoding without a KV cache: each new token computes the whole sequence again.

    The inputs of the model's matrix products grow by one token with each call.

    Silent for fewer than 8 such calls in a row, or 3 if torch.cat joins something between
    them; below 5 % of the step, for calls that a backward pass reaches, if most of the time
    in products is in others, and where shapes were not recorded.
    """
    if context.context_trace or context.is_jax:
        return
    products = _products(context)
    series = [one for one in _series(context, products) if _is_decoding(context, one)]
    if not series:
        return
    rows = np.unique([row for calls in series for call in calls for row in call.rows])
    spans = _calls_of_model(context, series)
    spent = _time_of_calls(context, spans)
    # The share of the inputs that the call before had computed.
    repeated = float(np.mean([1 - call.grown / call.size for calls in series for call in calls]))
    if context.measures.is_small(spent * repeated) or not _are_most_products(context, rows, products, spans):
        return
    first = max(series, key=len)
    yield context.finding(
        f"Each model call computes all tokens again, {rounded(spent)} ms per step. Its input grows from "
        f"{first[0].size} to {first[-1].size} rows in {len(first)} calls.{context.main_place(rows)}",
        ADVICE,
        rows,
        context.gains.bound(spent * repeated, "at most the time of all tokens but the new ones"),
    )


def _products(context: RuleContext) -> Rows:
    """The outermost products of the CPU that no backward pass reaches."""
    rows = context.search.outermost(context.search.find(_PRODUCT, category="cpu_op"))
    events = context.events
    backward = events.text("stage").mask("backward", "optimizer")
    numbers = events["sequence"][backward & (events["sequence"] >= 0)]
    return rows[~backward[rows] & ~np.isin(events["sequence"][rows], numbers)]


def _series(context: RuleContext, products: Rows) -> list[list[_GrownCall]]:
    """Calls in a row with growing inputs, for each weight."""
    shapes = context.search.each_shapes(products, _sizes)
    module, name = context.events["module"][products], context.events["name"][products]
    of_weight: dict[tuple[Any, ...], list[tuple[int, Shape]]] = {}
    for row, known, *key in zip(products.tolist(), shapes, module, name, strict=True):
        if known:
            of_weight.setdefault((*map(int, key), known[1]), []).append((row, known[0]))
    return [one for calls in of_weight.values() for one in _growing(calls)]


def _sizes(shapes: Sequence[Sequence[int]]) -> tuple[Shape, Shape] | None:
    """The sizes of a product's input but for the last, and of its weight; None if unknown."""
    operands = [tuple(shape) for shape in shapes if len(shape) > 1][:2]
    return None if len(operands) < 2 or len(operands[1]) != 2 else (operands[0][:-1], operands[1])


def _growing(calls: Sequence[tuple[int, Shape]]) -> list[list[_GrownCall]]:
    """The parts of a row of products whose inputs grow by one token each."""
    runs = [(shape, tuple(row for row, _ in group)) for shape, group in groupby(calls, itemgetter(1))]
    found: list[list[_GrownCall]] = [[]]
    for (shape, rows), (after, following) in pairwise(runs):
        size, grown = _growth(shape, after) if len(rows) == len(following) else (0, 0)
        if not grown or (found[-1] and found[-1][-1].grown != grown):
            found.append([])
        if grown:
            first = [] if found[-1] else [_GrownCall(rows, size - grown, grown)]
            found[-1] += [*first, _GrownCall(following, size, grown)]
    return [one for one in found if one]


def _growth(before: Shape, after: Shape) -> tuple[int, int]:
    """The size that grew and by how much; 0 if it is not by one token.

    Where batch and length are one size, a token is as many rows as the batch has.

    Example:
        >>> _growth((2, 9), (2, 10)), _growth((18,), (20,)), _growth((19,), (24,))
        ((10, 1), (20, 2), (24, 0))
    """
    changed = [(a, b) for a, b in zip(before, after, strict=False) if a != b]
    if len(before) != len(after) or len(changed) != 1:
        return 0, 0
    ((old, new),) = changed
    by = new - old
    one_token = by == 1 if len(before) > 1 else by > 0 and old % by == 0 and old > by
    return new, by if one_token else 0


def _is_decoding(context: RuleContext, calls: Sequence[_GrownCall]) -> bool:
    """Whether there are enough calls to be no chance, or fewer with a token joined between."""
    if len(calls) >= MANY or len(calls) < MANY_IF_JOINED:
        return len(calls) >= MANY
    start = context.events["start_ns"]
    joins = start[context.search.find(r"^aten::cat$", category="cpu_op")]
    ends, begins = start[[one.rows[-1] for one in calls[:-1]]], start[[one.rows[0] for one in calls[1:]]]
    return bool((count_within(joins, ends, begins) > 0).all())


def _calls_of_model(context: RuleContext, series: Sequence[Sequence[_GrownCall]]) -> Intervals:
    """From the first growing product of each call of the model to its last."""
    start, end = context.events.spans()
    starts, last = list[int](), -1
    for calls in sorted(series, key=lambda one: start[one[0].rows[0]]):
        if start[calls[0].rows[0]] > last:  # else of a later layer of the same calls
            starts += [int(start[call.rows[0]]) for call in calls]
            last = int(end[calls[-1].rows[-1]])
    rows = np.sort(np.array([call.rows[-1] for calls in series for call in calls], np.int64))
    of_call = last_begun(np.array(starts), start[rows])
    ends = np.zeros(len(starts), np.int64)
    np.maximum.at(ends, of_call, end[rows])
    return Intervals(np.array(starts, np.int64), ends)


def _time_of_calls(context: RuleContext, spans: Intervals) -> float:
    """The time of the operators in the calls, on a CPU with the Python between, ms per step."""
    rows = context.eager.rows
    inside = spans.cover(context.events["start_ns"][rows])
    if context.measures.has_device:
        return context.measures.longer_side_ms(rows[inside])
    return context.eager.ms(inside)


def _are_most_products(context: RuleContext, rows: Rows, products: Rows, spans: Intervals) -> bool:
    """Whether these take most of the time that the calls spend in products."""
    duration = context.events["duration_ns"]
    inside = products[spans.cover(context.events["start_ns"][products])]
    return bool(duration[rows].sum() >= MOSTLY * duration[inside].sum())
