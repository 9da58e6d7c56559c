"""`straggling_rank`: one rank works longer than the others, which wait for it."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.models.ranks import Straggler
from stepscope.trace.schema import COMPUTING

CAUSE = "communication"
EXPLAINS = ("communication",)
ADVICE = {
    "data_loading": "Find what makes its batches late: an uneven shard, a slow disk, fewer workers.",
    "host": "Find what else its CPU does: other processes, logging or saving on that rank.",
    "": "Find its extra work: an uneven shard, longer sequences, a slower device, a busy host, or logging.",
}


def straggling_rank(context: RuleContext) -> Iterator[Finding]:
    """A rank that works longer than the others, so that they wait for it in collectives.

    Silent for fewer than two ranks in the trace, if they do not communicate, if no rank works
    longer than the others beyond noise, and if the job would gain less than 5 % of the step.
    """
    found = context.job.stragglers if context.job and context.job.groups else ()
    ranks = sorted((one for one in found if not one.groups), key=lambda one: one.ranks)  # those are no links
    for _, same in groupby(ranks, lambda one: one.ranks):
        parts = sorted(same, key=lambda one: -one.cost_ms)
        cost = sum(one.cost_ms for one in parts)
        if not context.measures.is_small(cost):
            yield context.finding(
                " ".join(one.sentence for one in parts),
                f"{ADVICE.get(parts[0].stage, ADVICE[''])} See the findings of rank {parts[0].ranks[0]}.",
                _evidence(context, parts[0]),
                context.gains.bound(cost, "simulated, if it worked no longer than the median rank"),
            )


def _evidence(context: RuleContext, straggler: Straggler) -> Rows:
    """The work of these ranks in that stage; if none was recorded, the wait of another rank."""
    events = context.events
    inside = np.isin(events["step"], context.steps["step"])
    rank = context.trace["tracks"]["rank"][events["track"]]
    mine = np.isin(rank, straggler.ranks)
    other = rank == min({*context.trace.metadata.ranks} - {*straggler.ranks}, default=context.rank)
    category = events.text("category")
    works = category.mask(*COMPUTING) if context.measures.has_device else category.mask("cpu_op")
    works |= events.text("stage").mask("data_loading")
    rows = np.flatnonzero(inside & mine & works & events.text("stage").mask(straggler.stage))
    waits = np.flatnonzero(inside & other & category.mask("communication"))
    if len(rows):
        return context.search.outermost(rows)
    return waits if len(waits) else np.flatnonzero(inside & other)
