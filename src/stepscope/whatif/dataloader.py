"""`dataloader`: what if the next batch were always there?"""

from __future__ import annotations

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select


def dataloader(graph: Graph) -> Graph:
    """Loading data takes the training loop no time.

    Raises:
        ChangeError: if the training loop spends no time on it.
    """
    loading = select(graph, stage="data_loading", on_device=False)
    if not (graph.tasks["duration_ns"] + graph.tasks["gap_ns"])[loading].any():
        raise ChangeError("dataloader: the training loop spends no time on loading data")
    return scale(graph, loading, 0, gaps=True)
