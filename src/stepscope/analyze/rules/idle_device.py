"""`idle_device`: the device idles, and no other rule explains why."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import LEVELS, Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import plain_name
from stepscope.base.arrays import Ids, Rows
from stepscope.facts.summary.numbers import rounded
from stepscope.trace.intervals import Intervals

FALLBACK = True
REASONS = {
    "data": ("while a batch loads", "Load batches in worker processes, ahead of the step."),
    "synchronization": ("because the CPU was blocked on it", "Read results a step later."),
    "host": ("before the CPU launches more work", "Shorten or move what the CPU does there."),
    "launch": ("although work was launched", "Find the stream or the event that it waits for."),
    "communication": ("except for communication", "Overlap communication with computation."),
}


def idle_device(context: RuleContext) -> Iterator[Finding]:
    """A device that idles without another finding that explains it: where, and next to what.

    Silent below 5 % of the step, if the device is busy, and on a CPU.
    """
    cause = context.measures.summary.verdict.bound_by
    if not context.measures.has_device or context.context_trace or cause not in REASONS:
        return
    gaps = context.measures.idle(cause)
    idle = context.measures.recurring_ms(gaps)
    rows, inside = _around(context, gaps)
    if context.measures.is_small(idle) or not len(rows):
        return
    worst = int(rows[int(inside.argmax())])
    when, advice = REASONS[cause]
    frames = len(context.search.find(category="python", on_device=False)) > 0
    finding = context.finding(
        f"The device idles for {rounded(context.measures.idle_ms(cause))} ms per step "
        f"({context.measures.idle_share(cause):.0%}) {when}, "
        f"mostly in {plain_name(context.search.name(worst))}{context.place(worst)}.",
        advice if frames else f"{advice} Record with `stepscope run --stack` to see the functions.",
        rows,
        context.gains.bound(idle, "at most this idle time"),
    )
    limit = LEVELS[min(LEVELS.index(finding.limit), LEVELS.index("warning"))]
    yield replace(finding, limit=limit)  # no fix is known


def _around(context: RuleContext, gaps: Intervals) -> tuple[Rows, Ids]:
    """CPU events of the loop's thread in the gaps, and their self time there, ns."""
    events = context.events
    rows = context.search.find(on_device=False)
    rows = rows[events["track"][rows] == context.search.loop_track]
    start = events["start_ns"][rows]
    inside = gaps.within(start, start + events["duration_ns"][rows])
    children = np.bincount(
        np.maximum(events["parent"][rows], 0), inside * (events["parent"][rows] >= 0), len(events)
    )
    own = inside - children[rows].astype(np.int64)
    return rows[own > 0], own[own > 0]
