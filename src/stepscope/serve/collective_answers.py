"""The answer about collectives: what they take by kind and process group, and who comes late."""

from __future__ import annotations

import msgspec

from stepscope.ranks.arrival_matrix import ArrivalMatrix, arrival_matrix
from stepscope.ranks.collective_table import CollectiveRow, collective_table
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


def arrivals(view: TraceView, query: Query) -> ArrivalMatrix:
    """Collectives by rank: who arrives last at each, and who waits.

    Query:
        rank: whose steps; by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("arrivals", rank, step), lambda: arrival_matrix(view.trace, rank, step))


def _answer(view: TraceView, rank: int, step: int | None) -> Collectives:
    found = collective_table(view.trace, rank, step)
    late = sorted(found.late_ms.items(), key=lambda one: -one[1])
    return Collectives(
        found.rank, found.steps, found.step_ms, found.total_ms, found.exposed_ms,
        [Arrival(*one) for one in late],
        found.rows,
    )  # fmt: skip
