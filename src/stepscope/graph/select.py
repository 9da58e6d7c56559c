"""The primitive *select*: which tasks a change is about."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import GraphError
from stepscope.graph.graph import Graph
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES
from stepscope.trace.table import Text

Mask = NDArray[np.bool_]
_CLOSED = {"stage": STAGES, "kind": KERNEL_KINDS, "category": CATEGORIES}


def select(
    graph: Graph,
    *,
    stage: str | None = None,
    module: str | None = None,
    name: str | None = None,
    operator: str | None = None,
    kind: str | None = None,
    category: str | None = None,
    on_device: bool | None = None,
    rank: int | str | None = None,
    where: Callable[[Graph], Mask] | None = None,
) -> Mask:
    """Tasks that meet every condition given; where a step begins is no task to select.

    Args:
        graph: any graph.
        stage, kind, category: one of the trace's closed lists.
        module: a glob on the path of the module; what is inside it counts too.
        name: a glob on the task's own name.
        operator: a glob on the names of the events around the task, or around its launch.
        on_device: only device work, or only the CPU's.
        rank: only tasks of this rank, in a graph of several.
        where: any other condition, a function of the graph to bool, shape (tasks,).

    Returns:
        bool, shape (tasks,).

    Raises:
        GraphError: if a stage, kind or category is none of the known.

    Example:
        >>> select(graph, stage="backward", kind="gemm")  # doctest: +SKIP

    Source: DAYDREAM section 4.4, "Select".
    """
    chosen: Mask = graph.tasks["mark"] == 0
    for column, wanted in (("stage", stage), ("kind", kind), ("category", category)):
        if wanted is not None:
            chosen &= _closed(graph, column, wanted)
    if name is not None:
        chosen &= matching(graph.tasks.text("name"), name)
    if module is not None:
        chosen &= _in_module(graph, module)
    if operator is not None:
        chosen &= _in_operator(graph, operator)
    if on_device is not None:
        chosen &= graph.on_device == on_device
    if rank is not None:
        chosen &= _of_rank(graph, rank)
    return chosen & where(graph) if where else chosen


def parse_selection(text: str) -> dict[str, str]:
    """Conditions for `select` from text as `stage=backward+kind=gemm`.

    Raises:
        GraphError: if the text has another form.
    """
    known = ("stage", "module", "name", "operator", "kind", "category", "rank")
    pairs = [part.partition("=") for part in text.split("+")]
    for key, _, value in pairs:
        if key not in known or not value:
            raise GraphError(f"expected KEY=VALUE[+KEY=VALUE…] with KEY one of {', '.join(known)}; "
                             f"found {text!r}")  # fmt: skip
    return {key: value for key, _, value in pairs}


def matching(texts: Text, pattern: str) -> Mask:
    """Rows that match a glob."""
    return texts.where(lambda text: fnmatchcase(text, pattern))


def _of_rank(graph: Graph, rank: int | str) -> Mask:
    if not str(rank).isdecimal():
        raise GraphError(f"expected the number of a rank, found {rank!r}")
    mine: Mask = (graph.threads["rank"] == int(rank))[graph.tasks["thread"]]
    return mine


def _closed(graph: Graph, column: str, wanted: str) -> Mask:
    if wanted not in _CLOSED[column]:
        raise GraphError(f"expected a {column} of {', '.join(_CLOSED[column])}; found {wanted!r}")
    return graph.tasks.text(column).mask(wanted)


def _in_module(graph: Graph, pattern: str) -> Mask:
    paths = graph.trace["modules"].text("path")
    inside = matching(paths, pattern) | matching(paths, f"{pattern}.*")
    result: Mask = np.append(inside, False)[graph.tasks["module"]]
    return result


def _in_operator(graph: Graph, pattern: str) -> Mask:
    trace, event = graph.trace, graph.tasks["event"]
    named = matching(trace.events.text("name"), pattern)
    around = inherit(trace.events["parent"], np.where(named, 1, -1)) > 0
    launches = trace["launches"]
    around[launches["device_event"]] |= around[launches["cpu_event"]]
    result: Mask = np.append(around, False)[event]
    return result
