"""`repeated_backward`: several losses go back through the same operators one after the other."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, short_path
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import most_sampled
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.facts.summary.report_facts import samples_of
from stepscope.trace.sets import mask_of

_ACCUMULATES = "AccumulateGrad"
_ADDS = r"^aten::add_?$"
_FEWEST_SAMPLES = 2  # as of other places
MOSTLY = 0.5  # of the gradients, and of the samples
# What plans a pass, and the memory that it takes: 1.0 to 1.31 times the time of 2 to 6 passes was saved.
BESIDES = 0.35  # of it, by 4 generated steps on a busy CPU
WHY = "all but one of these passes"
ADVICE = (
    "Add up the losses and call backward() once, without retain_graph=True. The gradients are the same: "
    "each pass adds its own to those of the pass before."
)


def repeated_backward(context: RuleContext) -> Iterator[Finding]:
    """Backward passes that go through the same operators again, as of several losses of one model.

    Silent below 5 % of the step, if gradients are zeroed, released or used by an update between the
    passes, for gradients that are differentiated themselves (penalties, meta-learning), for those of
    torch.autograd.grad, and where backward is not linked to forward.
    """
    if context.is_jax or context.context_trace:
        return
    rows, times = _repeated(context)
    if not len(rows) or context.measures.is_small(spent := context.measures.longer_side_ms(rows)):
        return
    bound = context.gains.bound(spent, WHY)
    if not context.measures.has_device:  # with the dispatch between the nodes
        bound = context.gains.bound(context.eager.ms(context.eager.around(rows)), WHY, BESIDES)
    place = most_sampled(
        samples_of(context.trace), context.measures.stage_spans("backward"), _FEWEST_SAMPLES, MOSTLY
    )
    where = f" See {short_path(place[0])}:{place[1]}." if place else context.main_place(rows)
    finding = context.finding(
        f"Backward goes through the same operators {rounded(times)} times per update. "
        f"All but one of these passes take {rounded(spent)} ms per step.{where}",
        ADVICE,
        rows,
        bound,
    )
    yield finding.at_line(*place) if place else finding


def _repeated(context: RuleContext) -> tuple[Rows, float]:
    """The nodes of all passes but the first, and how many passes there are."""
    search, events = context.search, context.events
    nodes = search.outermost(search.find(category="cpu_op", stage="backward"))
    origin = events["forward_event"]
    backward = events.text("stage").mask("backward")
    twice = np.unique(origin[origin >= 0])
    differentiated = search.holding(twice[backward[twice]])  # by a pass of second order
    update = _update_of(context, nodes)
    linked = np.flatnonzero((origin[nodes] >= 0) & ~differentiated[nodes])
    if not len(linked):
        return nodes[:0], 0.0
    key = np.stack([origin[nodes[linked]], events["name"][nodes[linked]], update[linked]])
    _, first, count = np.unique(key, axis=1, return_index=True, return_counts=True)
    again = mask_of(np.delete(linked, first), len(nodes))
    begun = np.maximum.accumulate(np.where(again, update, -1)) == update
    added = begun & events.text("name").where(lambda name: _ACCUMULATES in name)[nodes]
    adds = search.holding(search.find(_ADDS, stage="backward"))[nodes[added]]
    if not len(adds) or adds.mean() < MOSTLY:
        return nodes[:0], 0.0
    return nodes[again | added], float(np.median(count[count > 1]))


def _update_of(context: RuleContext, nodes: Rows) -> Rows:
    """How often gradients were zeroed or used before each node."""
    runs = context.trace["stages"]
    ends = runs.text("stage").mask("zero_grad", "optimizer") & (runs["rank"] == context.rank)
    begins = np.sort(runs["start_ns"][ends])
    return np.searchsorted(begins, context.events["start_ns"][nodes], side="right")
