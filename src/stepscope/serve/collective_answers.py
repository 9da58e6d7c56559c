"""The answer about collectives: what they take by kind and process group, and who comes late."""

from __future__ import annotations

from stepscope.ranks.collective_table import ArrivalMatrix, Collectives, arrival_matrix, collective_table
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView


def collectives(view: TraceView, query: Query) -> Collectives:
    """Collectives by kind and process group.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(
        ("collectives", rank, step), lambda: collective_table(view.trace, rank, step)
    )


def arrivals(view: TraceView, query: Query) -> ArrivalMatrix:
    """Collectives by rank: who arrives last at each, and who waits.

    Query:
        rank: whose steps; by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("arrivals", rank, step), lambda: arrival_matrix(view.trace, rank, step))
