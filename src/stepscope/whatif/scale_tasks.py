"""`scale`: what if some tasks took another time?"""

from __future__ import annotations

from stepscope.errors import ChangeError
from stepscope.graph import Graph, parse_selection
from stepscope.graph import scale as scale_graph
from stepscope.graph import select as select_tasks


def scale(graph: Graph, select: str, factor: float) -> Graph:
    """Tasks chosen by stage, module, name, operator, kind or category take FACTOR times as long.

    Args:
        graph: any graph.
        select: conditions as `stage=backward+kind=gemm`.
        factor: 0.5 for twice as fast.

    Raises:
        ChangeError: if nothing is selected.
    """
    chosen = select_tasks(graph, **parse_selection(select))  # type: ignore[arg-type]
    if not chosen.any():
        raise ChangeError(f"scale: no task meets {select}")
    return scale_graph(graph, chosen, factor)
