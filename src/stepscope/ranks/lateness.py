"""Who arrives late at the collectives of a job, and who waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.collectives import Matched
from stepscope.ranks.group_table import Shape
from stepscope.ranks.job import Job
from stepscope.ranks.job_table import JobTable


@dataclass(frozen=True)
class Lateness:
    """Arrivals at one kind of collective on process groups of one shape.

    Attributes:
        shape: the kind, and the process groups.
        late_ms: how much later per step each rank arrives than the median rank of those that take
            part, shape (ranks,); negative for ranks that wait longer; nan for those that take no
            part.
    """

    shape: Shape
    late_ms: Floats


def lateness(job: Job) -> list[Lateness]:
    """The arrivals of all ranks, the kinds at which ranks wait longest first.

    All ranks leave a collective at about the same time, so who stays longer than the one with the
    shortest call waited for it; no common clock is needed.
    """
    table, matched = job.table, job.matched
    met = np.flatnonzero(matched.meeting >= 0)
    waited = np.full(len(matched.meeting), 0.0)
    waited[met] = matched.columns.duration_ns[met] - matched.transfer_ns[matched.meeting[met]]
    found = [
        Lateness(shape, _late(table, matched, waited, keys)) for shape, keys in job.groups.items()
    ]
    return sorted(found, key=lambda one: -float(np.nanmax(np.abs(one.late_ms))))


def _late(table: JobTable, matched: Matched, waited: Floats, keys: list[int]) -> Floats:
    ranks = len(table.sketches)
    mine = np.isin(matched.key, keys) & (matched.meeting >= 0)
    total = np.bincount(matched.rank[mine], waited[mine], ranks) / 1e6 / len(table.steps)
    took_part = np.bincount(matched.rank[mine], minlength=ranks) > 0
    late: Floats = np.median(total[took_part]) - total
    late[~took_part] = np.nan
    return late
