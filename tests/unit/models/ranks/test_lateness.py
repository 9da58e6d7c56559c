"""Who arrives late at collectives is told by who stays in them, without a common clock."""

from __future__ import annotations

import msgspec
import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.ranks import Sketch, sketch_of
from stepscope.models.ranks.job import Job
from stepscope.models.ranks.process_groups import lateness
from stepscope.testing import drawn_trace

STEP = """
    main     |    0 2000 | ProfilerStep#0
    main     |  100  300 | aten::mm         | seq=1
    main     |  110  120 | cudaLaunchKernel | corr=1
    main     |  130  140 | cudaLaunchKernel | corr=2
    stream 7 |  130  300 | sgemm            | corr=1
    comm 8   | {arrival} 1500 | ncclDevKernel_AllReduce | corr=2 dtype=Float {group}
"""
GROUP = "Collective_name=allreduce Group_size=%d In_msg_nelems=9 Out_msg_nelems=9 Process_Group_Name=%s"


def rank(number: int, arrival: int, group: str = "0", size: int = 4) -> Sketch:
    text = STEP.format(arrival=arrival, group=GROUP % (size, group))
    found = sketch_of(annotate(drawn_trace(text)))
    return msgspec.structs.replace(found, rank=number)


def test_the_rank_with_the_shortest_call_came_last() -> None:
    """Rank 2 comes at 1,400, the others between 500 and 700: it keeps them waiting."""
    job = Job.of([rank(0, 500), rank(1, 600), rank(2, 1400), rank(3, 700)])
    (found,) = lateness(job.table, job.matched, job.groups)
    assert (found.shape.kind, found.shape.members) == ("allreduce", 4)
    # They wait 0.9, 0.8, 0 and 0.7 ms; the median rank 0.75.
    assert found.late_ms.tolist() == pytest.approx([-0.15, -0.05, 0.75, 0.05])


def test_ranks_are_compared_with_those_of_their_group() -> None:
    pairs = ((0, 500, "a"), (1, 900, "a"), (2, 1400, "b"), (3, 700, "b"))
    job = Job.of([rank(number, at, group, 2) for number, at, group in pairs])
    found = [one for one in lateness(job.table, job.matched, job.groups) if one.shape.members == 2]
    waits = [0.4, 0.0, 0.0, 0.7]  # in each pair the one that comes first
    medians = [0.2, 0.2, 0.35, 0.35]
    late = [median - wait for median, wait in zip(medians, waits, strict=True)]
    assert found[0].late_ms.tolist() == pytest.approx(late)


def test_without_communication_nobody_is_late() -> None:
    quiet = msgspec.structs.replace(rank(0, 500), calls=type(rank(0, 500).calls)())
    job = Job.of([quiet, msgspec.structs.replace(quiet, rank=1)])
    assert lateness(job.table, job.matched, job.groups) == []
