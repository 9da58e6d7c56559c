"""`repeated_backward`: several losses go back through the same operators one after the other."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from stepscope.analyze.finding import Finding, short_path
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import carries_at, most_sampled, tree_of
from stepscope.base.arrays import Ids, Rows
from stepscope.base.numbers import rounded
from stepscope.facts.summary.report_facts import samples_of
from stepscope.trace.row_order import place_in_group
from stepscope.trace.sets import distinct_rows, mask_of

_ACCUMULATES = "AccumulateGrad"
_ADDS = r"^aten::add_?$"
_FEWEST_SAMPLES = 2  # as of other places
MOSTLY = 0.5  # of the gradients, and of the samples
ROWS = 8  # passes through one operator: penalties, meta-learning, and a gradient for each input have fewer
# What plans a pass, and the memory that it takes: 1.0 to 1.31 times the time of 2 to 6 passes was saved.
BESIDES = 0.35  # of it, by 4 generated steps on a busy CPU
WHY = "all but one of these passes"
ADVICE = (
    "Add up the losses and call backward() once, without retain_graph=True. The gradients are the same: "
    "each pass adds its own to those of the pass before."
)
BATCHED = "Compute all rows of a Jacobian in one pass: torch.autograd.grad(..., is_grads_batched=True)."


def repeated_backward(context: RuleContext) -> Iterator[Finding]:
    """Backward passes that go through the same operators again, as of several losses of one model.

    Silent below 5 % of the step, if gradients are zeroed, released or used by an update between the
    passes, for gradients that are differentiated themselves (penalties, meta-learning) or of
    torch.autograd.grad if there are fewer than 8, and where backward is not linked to forward.
    """
    if context.is_jax or context.context_trace:
        return
    rows, times, advice = _repeated(context)
    passes = context.search.with_backward(rows)
    if not len(rows) or context.measures.is_small(spent := context.measures.longer_side_ms(passes)):
        return
    bound = context.gains.bound(spent, WHY)
    if not context.measures.has_device:  # with the dispatch between the nodes
        bound = context.gains.bound(context.eager.ms(context.eager.around(passes)), WHY, BESIDES)
    place = advice == ADVICE and most_sampled(
        samples_of(context.trace), context.measures.stage_spans("backward"), _FEWEST_SAMPLES, MOSTLY
    )
    where = f" See {short_path(place[0])}:{place[1]}." if place else context.main_place(rows)
    finding = context.finding(
        f"Backward goes through the same operators {rounded(float(np.median(times)))} times per update. "
        f"All but one of these passes take {rounded(spent)} ms per step.{where}",
        advice,
        rows,
        bound,
    )
    first = finding.evidence[0]
    if advice == ADVICE or not any(carries_at(cache(tree_of), first.file, first.line, first.called)):
        yield finding.at_line(*place) if place else finding


def _repeated(context: RuleContext) -> tuple[Rows, Ids, str]:
    """The nodes of all passes but the first, how many passes there are of each, and what to do."""
    search, events = context.search, context.events
    nodes = search.outermost(search.find(category="cpu_op", stage="backward"))
    origin = events["forward_event"]
    backward = events.text("stage").mask("backward")
    twice = np.unique(origin[origin >= 0])
    differentiated = search.holding(twice[backward[twice]])  # by a pass of second order
    update = _update_of(context, nodes)
    linked = np.flatnonzero((origin[nodes] >= 0) & ~differentiated[nodes])
    later, count = _later(context, nodes[linked], update[linked])
    again = mask_of(linked[later], len(nodes))
    begun = np.maximum.accumulate(np.where(again, update, -1)) == update
    added = begun & events.text("name").where(lambda name: _ACCUMULATES in name)[nodes]
    adds = search.holding(search.find(_ADDS, stage="backward"))[nodes[added]]
    if len(adds) and adds.mean() >= MOSTLY:
        return nodes[again | added], count[later], ADVICE
    known = origin[nodes] >= 0
    nodes = nodes[known]  # without sums of gradients: of torch.autograd.grad
    later, count = _later(context, nodes, update[known])
    later = later[count[later] >= ROWS]
    return nodes[later], count[later], BATCHED


def _later(context: RuleContext, nodes: Rows, update: Rows) -> tuple[Ids, Ids]:
    """Which nodes go through an operator again before an update, and how many go through that of each."""
    events = context.events
    _, same = distinct_rows(events["forward_event"][nodes], events["name"][nodes], update)
    return np.flatnonzero(place_in_group(same)), np.bincount(same)[same]


def _update_of(context: RuleContext, nodes: Rows) -> Rows:
    """How often gradients were zeroed or used before each node."""
    runs = context.trace["stages"]
    ends = runs.text("stage").mask("zero_grad", "optimizer") & (runs["rank"] == context.rank)
    return np.searchsorted(np.sort(runs["start_ns"][ends]), context.events["start_ns"][nodes], side="right")
