"""`straggling_rank`: one rank works longer than the others, which wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Floats, Rows
from stepscope.summary.numbers import rounded
from stepscope.trace.intervals import Intervals

CAUSE = "communication"
EXPLAINS = ("communication",)
LEAST = 0.05
OWN_WAIT = 0.25


def straggling_rank(context: RuleContext) -> Iterator[Finding]:
    """A rank that enters collectives last, so that the others wait for it.

    All ranks leave a collective together. The rank that enters last spends the shortest time in it;
    the excess of every other rank is its wait.

    Silent for fewer than two ranks in the trace, if ranks differ in the number of collectives, if
    no rank waits far less than the others (the last rank changes), and below 5 % of the step.
    """
    collectives = {rank: _collectives(context, rank) for rank in context.trace.metadata.ranks}
    counts = {len(rows) for rows in collectives.values()}
    if len(collectives) < 2 or len(counts) > 1 or 0 in counts:
        return
    ranks = list(collectives)
    wait = _waits_ms(context, list(collectives.values()))
    last = int(wait.argmin())
    others = float(np.median(np.delete(wait, last)))
    if others < LEAST * context.steady_ms or wait[last] > OWN_WAIT * others:
        return
    rows = np.sort(np.concatenate([collectives[rank] for rank in ranks if rank != ranks[last]]))
    yield context.finding(
        f"Rank {ranks[last]} enters collectives last: the others wait {rounded(others)} ms per "
        "step in "
        f"them (the median), rank {ranks[last]} waits {rounded(wait[last])} ms.",
        f"Find the extra work of rank {ranks[last]} (stepscope analyze --rank {ranks[last]}): an "
        "uneven shard, longer sequences, a slower device, a busy host, logging on that rank.",
        rows,
        _gain(context, others),
    )


def _gain(context: RuleContext, others: float) -> Gain:
    """Simulated with devices; threads of the CPU do not show all waits, so then a bound."""
    simulated = context.whatif("no_straggler") if context.has_device else None
    return simulated or context.bound(others, "at most the wait of the others")


def _waits_ms(context: RuleContext, collectives: list[Rows]) -> Floats:
    """How long each rank waits in its collectives, ms per step; in several at once only once."""
    start = np.stack([context.events["start_ns"][rows] for rows in collectives])
    duration = np.stack([context.events["duration_ns"][rows] for rows in collectives])
    until = start + duration - duration.min(axis=0)
    waits = [Intervals(*bounds).total() for bounds in zip(start, until, strict=True)]
    return np.array(waits) / 1e6 / context.step_count


def _collectives(context: RuleContext, rank: int) -> Rows:
    """The collectives of a rank in order: on its device, else on its CPU threads."""
    events = context.events
    mine = context.trace["tracks"]["rank"][events["track"]] == rank
    mine &= events.text("category").mask("communication")
    mine &= np.isin(events["step"], context.steps["step"])  # not those of a step that warms up
    on_device = context.trace["tracks"]["device"][events["track"]] >= 0
    return np.flatnonzero(mine & on_device if (mine & on_device).any() else mine)
