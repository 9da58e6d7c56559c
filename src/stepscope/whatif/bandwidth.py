"""`bandwidth`: what if the network were faster?"""

from __future__ import annotations

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select


def bandwidth(graph: Graph, factor: float = 2.0) -> Graph:
    """Collectives run at FACTOR times the bandwidth.

    Raises:
        ChangeError: if the step does not communicate, or the factor is not above 0.

    Source: DAYDREAM figure 2 (c).
    """
    if factor <= 0:
        raise ChangeError(f"bandwidth: expected a factor above 0, found {factor}")
    collectives = select(graph, category="communication")
    if not collectives.any():
        raise ChangeError("bandwidth: no collective in these steps")
    return scale(graph, collectives, 1 / factor)
