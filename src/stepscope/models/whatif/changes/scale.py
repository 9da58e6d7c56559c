"""`scale`: selected tasks take a multiple of their time."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph, parse_selection
from stepscope.graph import scale as scale_graph
from stepscope.graph import select as select_tasks
from stepscope.models.whatif.change import Change


def scale(graph: Graph, select: str, factor: float) -> Graph:
    """Selected tasks take FACTOR times as long.

    Keys of a selection are `stage`, `module`, `name`, `operator`, `kind`, `category` and `rank`;
    module, name and operator take globs.

    Args:
        select: conditions such as `stage=backward+kind=gemm`.
        factor: 0.5 for twice as fast.
    """
    chosen = select_tasks(graph, **parse_selection(select))  # type: ignore[arg-type]
    if not chosen.any():
        raise ChangeError(f"scale: no task matches {select}")
    return scale_graph(graph, chosen, factor)


CHANGE = Change(scale, group="Anything", basis="the factor that you give", ranked=False)
