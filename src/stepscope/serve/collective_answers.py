"""The answer about collectives: what they take by kind and process group, and who comes late."""

from __future__ import annotations

import msgspec

from stepscope.ranks.collective_table import collective_table
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView


class Arrival(msgspec.Struct):
    """A rank at the collectives of a step.

    Attributes:
        late_ms: how much later it arrives than the median rank, ms per step; less than zero for
            one that waits longer.
    """

    rank: int
    late_ms: float


class CollectiveRow(msgspec.Struct):
    """Collectives of one kind on one process group; counts and times are means per step.

    Attributes:
        kind: such as `allreduce`.
        group: name of the process group, as recorded; empty if unknown.
        ranks: its ranks in short, such as `0-7`; empty if unknown.
        members: how many ranks; null if unknown.
        bytes: of the median call; null if not recorded.
        total_ms: time in all calls, including the wait for other ranks.
        exposed_ms: the part in which the rank computes nothing.
        wait_ms: the part until the last rank arrives; null if the trace holds no other member.
        transfer_ms: of the median call, after the last rank has arrived; if the trace holds no
            other member, its duration.
        algorithm_gbs: bytes over time of the median call's transfer, GB/s; null without bytes.
        bus_gbs: the same as NCCL's tests define bus bandwidth; null without bytes or members.
        last_rank: the rank that most often arrives last; null if the trace holds no other member.
        last_share: the share of the calls in which it does.
        stages: share of the row's time in each stage.
        longest_event: id of the longest call.
    """

    kind: str
    group: str
    ranks: str
    members: int | None
    count: float
    bytes: int | None
    total_ms: float
    exposed_ms: float
    wait_ms: float | None
    transfer_ms: float
    algorithm_gbs: float | None
    bus_gbs: float | None
    last_rank: int | None
    last_share: float | None
    stages: dict[str, float]
    longest_event: int


class Collectives(msgspec.Struct):
    """The collectives of one rank, those with the most exposed time first; ms per step.

    Attributes:
        steps: numbers of the steps that times are means of.
        step_ms: the step length.
        total_ms: time in which any collective runs.
        exposed_ms: the part in which the rank computes nothing.
        arrivals: of all ranks of the trace, the latest first; empty for one rank.
    """

    rank: int
    steps: list[int]
    step_ms: float
    total_ms: float
    exposed_ms: float
    arrivals: list[Arrival]
    rows: list[CollectiveRow]


def collectives(view: TraceView, query: Query) -> Collectives:
    """Collectives by kind and process group.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("collectives", rank, step), lambda: _answer(view, rank, step))


def _answer(view: TraceView, rank: int, step: int | None) -> Collectives:
    found = collective_table(view.trace, rank, step)
    late = sorted(found.late_ms.items(), key=lambda one: -one[1])
    return Collectives(
        found.rank, found.steps, found.step_ms, found.total_ms, found.exposed_ms,
        [Arrival(*one) for one in late],
        [CollectiveRow(**vars(row)) for row in found.rows],
    )  # fmt: skip
