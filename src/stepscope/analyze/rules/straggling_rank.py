"""`straggling_rank`: one rank of a job works longer than the others, which wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Rows, Subject

LEAST = 0.05
OWN_WAIT = 0.25


def straggling_rank(subject: Subject) -> Iterator[Finding]:
    """A rank that comes to the collectives last, so that the others wait for it in them.

    All ranks leave a collective together, so whoever came first is in it longest: what a rank is in
    it longer than the shortest is its wait.

    Silent for fewer than two ranks in the trace, where ranks differ in the number of collectives,
    where no rank waits far less than the others (the last to come is another one each time), and
    below 5 % of the step.
    """
    spoken = {rank: _collectives(subject, rank) for rank in subject.trace.metadata.ranks}
    counts = {len(rows) for rows in spoken.values()}
    if len(spoken) < 2 or len(counts) > 1 or 0 in counts:
        return
    ranks = list(spoken)
    duration = np.stack([subject.events["duration_ns"][rows] for rows in spoken.values()])
    wait = (duration - duration.min(axis=0)).sum(axis=1) / 1e6 / subject.count
    last = int(wait.argmin())
    others = float(np.median(np.delete(wait, last)))
    if others < LEAST * subject.step_ms or wait[last] > OWN_WAIT * others:
        return
    rows = np.sort(np.concatenate([spoken[rank] for rank in ranks if rank != ranks[last]]))
    yield subject.finding(
        f"Rank {ranks[last]} comes last to the collectives: the others wait {others:.3g} ms a step "
        f"in them (the median), it {wait[last]:.3g} ms.",
        f"Find what rank {ranks[last]} does more of (stepscope analyze --rank {ranks[last]}): an "
        "uneven shard or longer sequences, a slower device, a busy host, logging on that rank.",
        rows,
        subject.whatif("no_straggler") or subject.bound(others, "at most what the others wait"),
    )


def _collectives(subject: Subject, rank: int) -> Rows:
    """The collectives of a rank's steps in order: on its device, else on its CPU's threads."""
    events = subject.events
    mine = subject.trace["tracks"]["rank"][events["track"]] == rank
    mine &= events.text("category").mask("communication")
    mine &= np.isin(events["step"], subject.steps["step"])  # not those of a step that warms up
    on_device = subject.trace["tracks"]["device"][events["track"]] >= 0
    return np.flatnonzero(mine & on_device if (mine & on_device).any() else mine)
