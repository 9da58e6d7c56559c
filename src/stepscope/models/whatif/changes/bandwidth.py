"""`bandwidth`: a faster network."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.network import FIXED_COST, time_factor


def bandwidth(graph: Graph, factor: float = 2.0, latency_us: float = 0.0) -> Graph:
    """Collectives run at FACTOR times the bandwidth.

    In a folder of ranks only the transfer shrinks, not the wait for the last rank.

    Args:
        factor: 2 for twice the bandwidth.
        latency_us: fixed cost of a call where recorded sizes do not show it, us.

    Source: DAYDREAM figure 2 (c).
    """
    if factor <= 0:
        raise ChangeError(f"bandwidth: expected factor above 0, found {factor}")
    collectives = select(graph, category="communication")
    if not collectives.any():
        raise ChangeError("bandwidth: these steps have no collectives")
    return scale(graph, collectives, time_factor(graph, collectives, 1 / factor, latency_us))


CHANGE = Change(
    bandwidth,
    group="Ranks of one job",
    basis="recorded collectives: a fixed cost, and bytes by the bandwidth",
    assumptions=(
        FIXED_COST,
        "with one rank alone, its wait for the other ranks counts as part of the collectives' time",
    ),
    low={"latency_us": 1e6},
    error=0.10,
    error_source="DAYDREAM 6.5",
    makeable=False,
)
