"""`bandwidth`: a faster network."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select
from stepscope.models.whatif.change import Change


def bandwidth(graph: Graph, factor: float = 2.0) -> Graph:
    """Collectives run at FACTOR times the bandwidth.

    In a folder of ranks only the transfer shrinks, not the wait for the last rank.

    Args:
        factor: 2 for twice the bandwidth.

    Source: DAYDREAM figure 2 (c).
    """
    if factor <= 0:
        raise ChangeError(f"bandwidth: expected factor above 0, found {factor}")
    collectives = select(graph, category="communication")
    if not collectives.any():
        raise ChangeError("bandwidth: these steps have no collectives")
    return scale(graph, collectives, 1 / factor)


CHANGE = Change(
    bandwidth,
    group="Ranks of one job",
    basis="collectives assumed to be bandwidth-bound",
    assumptions=(
        "collectives are bandwidth-bound and have no latency; with one rank alone, its wait for "
        "the other ranks shrinks, too",
    ),
    error=0.10,
    error_source="DAYDREAM 6.5",
    makeable=False,
)
