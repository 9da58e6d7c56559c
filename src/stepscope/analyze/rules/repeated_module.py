"""`repeated_module`: a module is called for one row or task after the other."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain, line_words
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.expert_loop import EXPERT
from stepscope.analyze.rules.recurrent_loop import CELL
from stepscope.analyze.source_places import Trees, carries_at, tree_of
from stepscope.base.arrays import Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.trace.row_order import last_begun
from stepscope.trace.sets import distinct_rows
from stepscope.trace.table import Table

CAUSE = "experts"
MANY = 16  # calls per step, as of a recurrent cell
SMALL_NS = 20_000  # as `DISPATCH_NS`: a shorter product is mostly dispatch
LEAST = 0.2  # of the step
SAVED = 0.6  # of the calls at least: 128 rows in one call saved 0.97, 48 heads 0.7
COMPILED = 0.3  # of the calls at least: the compiled step of a solver of 4 stages saved 0.43
_PRODUCT = r"^aten::(mm|addmm|linear|bmm|convolution|conv[123]d)$"
_WEIGHT = re.compile(r"(^|\.)parametrizations\.\w+$")
STAGES = ("forward", "loss", "other")
ADVICE = (
    "If no call needs an earlier one's result, stack inputs along the batch dimension and call it "
    "once. For calls with other weights or gradients of their own, use torch.func.vmap (with "
    "torch.func.stack_module_state)."
)
OF_SIBLINGS = "Keep their weights in one tensor and compute all at once: torch.baddbmm, or one wider layer."
ONE_BY_ONE = (
    "Each call needs the last one's result: compile the body of the loop (torch.compile), or loop less often."
)
CACHED = (
    "Compute the loss under torch.nn.utils.parametrize.cached(): it computes each weight once. "
    "Leave it before the optimizer changes them."
)


def repeated_module(context: RuleContext) -> Iterator[Finding]:
    """A module with small products that is trained with 16 or more calls per step.

    Or modules of one kind that a loop calls, as attention heads. Or weights that each call computes
    again (torch.nn.utils.parametrize).

    Silent on devices and in JAX, for experts and recurrent cells, which have rules of their own, if modules
    are unknown, and if the calls and their backward pass take less than 20 % of the step (of weights 5 %).
    """
    if context.measures.has_device or context.is_jax or context.context_trace:
        return
    weights = context.search.module_calls
    weights = weights[_has_path(context, weights, _WEIGHT)]
    apart = context.search.holding(context.search.find(CELL)) | context.search.within(weights)
    yield from _computed_again(context, weights)
    yield from _in_loops(context, apart)


def _has_path(context: RuleContext, rows: Rows, pattern: re.Pattern[str]) -> Mask:
    """Which events are of a module whose path matches."""
    paths = context.trace["modules"].text("path").take(context.events["module"][rows])
    return paths.where(lambda path: bool(pattern.search(path)))


def _computed_again(context: RuleContext, calls: Rows) -> Iterator[Finding]:
    """Calls that compute a weight, which no update has changed since the last one."""
    updates = context.search.find(r"^Optimizer\.step#")
    update = last_begun(context.events["start_ns"][updates], context.events["start_ns"][calls])
    needed = len(distinct_rows(context.events["module"][calls], update)[0])
    again = (len(calls) - needed) / (len(calls) or 1)
    of_weights = context.eager.with_backward(context.search.within(calls)[context.eager.rows])
    spent = again * context.eager.elapsed_ms(of_weights)
    if not again or context.measures.is_small(spent):
        return
    yield context.finding(
        f"Parametrized weights are computed again {rounded(again * context.measures.calls(calls), 4)} times "
        f"per step.{context.main_place(calls)}",
        CACHED,
        calls,
        context.gains.bound(spent, "all but one computation of each weight per update", sure=SAVED),
        recurs=False,
        limit="warning",
    )


class Loop(NamedTuple):
    """What calls one module, or each module of a list."""

    kind: str  # the same for all layers that have such a list
    path: str  # of the module, or of the list
    file: str = ""  # of a list: where the loop is written
    line: int = -1


def _in_loops(context: RuleContext, apart: Mask) -> Iterator[Finding]:
    tree = cache(tree_of)
    rows, loops = _products(context, apart, tree)
    if context.measures.calls(rows) < MANY:
        return
    around = context.search.enclosing(context.search.module_calls)[rows]
    calls = {*zip(loops, np.where([loop.file != "" for loop in loops], around, rows).tolist(), strict=True)}
    kind, count = Counter(loop.kind for loop, _ in calls).most_common(1)[0]
    same = sorted({loop for loop in loops if loop.kind == kind})
    gain = _gain(context, rows, apart, 1 - context.step_count * len(same) / max(count, context.step_count))
    if gain.ms < LEAST * context.measures.steady_ms:
        return
    times, (*_, file, line) = rounded(count / context.step_count, 4), same[0]
    what = (
        f"A loop calls {times} modules of one kind" if file else f"A module is called {times} times per step"
    )
    where = f" See {line_words(file, line, '')}." if file else context.main_place(rows)
    found = context.finding(
        f"{what} with little work each.{where}",
        OF_SIBLINGS if file else ADVICE,
        rows,
        gain,
        recurs=False,  # not the products alone, but all that every step calls
        limit="warning",
    )
    place = found.evidence[0]
    carry = carries_at(tree, place.file, place.line, place.called)
    if carry and all(carry) and not file:
        gain = replace(found.gain, range_ms=(COMPILED * found.gain.ms, found.gain.stated_ms[1]))
        found = replace(found, advice=ONE_BY_ONE, gain=gain)
    yield found.at_line(file, line, "") if file else found


def _products(context: RuleContext, apart: Mask, tree: Trees) -> tuple[Rows, list[Loop]]:
    """Small products with a backward pass, of modules that run many times in a step, but not `apart`.

    One of each call of the program: aten::gru loops over its steps by itself.
    """
    search, events = context.search, context.events
    rows = search.outermost(search.find(_PRODUCT, category="cpu_op", stage=STAGES))
    rows = rows[(events["module"][rows] >= 0) & search.trained()[rows] & ~apart[rows]]
    rows = rows[~_has_path(context, rows, EXPERT)]
    rows = rows[np.unique(search.enclosing(context.eager.rows)[rows], return_index=True)[1]]
    modules, number = np.unique(events["module"][rows], return_inverse=True)
    carry = cache(partial(carries_at, tree))
    loops = [_loop_of(context.trace["modules"], module, carry) for module in modules.tolist()]
    of = np.unique([loop.kind for loop in loops], return_inverse=True)[1][number]
    count = np.bincount(of)
    ordered = rows[np.lexsort((events["duration_ns"][rows], of))]
    median = ordered[np.cumsum(count) - (count + 1) // 2]  # a busy machine makes means longer
    kept = ((count >= MANY * context.step_count) & (events["duration_ns"][median] < SMALL_NS))[of]
    return rows[kept], [loops[one] for one in number[kept].tolist()]


def _loop_of(modules: Table, module: int, carry: Callable[[str, int], list[bool]]) -> Loop:
    """Modules of a list count as one where a loop calls them, and no call needs an earlier one's result."""
    inner, path = module, modules.text("path")
    while (outer := int(modules["parent"][inner])) >= 0 and modules["calls"][outer]:
        inner = outer
    file, line = modules.text("call_file")[inner] or "", int(modules["call_line"][inner])
    if outer < 0 or carry(file, line)[:1] != [False]:
        return Loop(path[module] or "", path[module] or "")
    part = f"{(path[module] or '').removeprefix(path[inner] or '')} of {modules['parameters'][inner]}"
    return Loop(re.sub(r"\b\d+\b", "*", path[outer] or "") + part, f"{path[outer]}{part}", file, line)


def _gain(context: RuleContext, rows: Rows, apart: Mask, part: float) -> Gain:
    """This part of all that the loops call, without what is `apart`."""
    loops = context.eager.of_loops(rows) & ~context.eager.with_backward(apart[context.eager.rows])
    spent = context.eager.elapsed_ms(loops) * part
    bound = context.gains.bound(spent, "all calls of the loop and of its backward pass, but one", sure=SAVED)
    return context.gains.unsure(bound, context.search.within(context.eager.rows[loops]))
