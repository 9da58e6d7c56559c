"""The primitive *select*: the tasks that a change applies to."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import numpy as np

from stepscope.arrays import Mask
from stepscope.errors import GraphError
from stepscope.graph.graph import Graph
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES
from stepscope.trace.table import Text

_VALUES = {"stage": STAGES, "kind": KERNEL_KINDS, "category": CATEGORIES}


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
    """Tasks that meet every given condition; marks of steps are never selected.

    Args:
        graph: any graph.
        stage, kind, category: one of the trace's closed lists.
        module: a glob on the path of the module; submodules match too.
        name: a glob on the task's name.
        operator: a glob on the names of the events around the task, or around its launch.
        on_device: only device work, or only the CPU's.
        rank: only tasks of this rank, in a graph of several ranks.
        where: any other condition, a function of the graph to bool, shape (tasks,).

    Returns:
        bool, shape (tasks,).

    Raises:
        GraphError: if a stage, kind, category or rank is not valid.

    Example:
        >>> select(graph, stage="backward", kind="gemm")  # doctest: +SKIP

    Source: DAYDREAM section 4.4, "Select".
    """
    chosen: Mask = graph.tasks["mark"] == 0
    for column, value in (("stage", stage), ("kind", kind), ("category", category)):
        if value is not None:
            chosen &= _equal(graph, column, value)
    globs = ((name, _named), (module, _in_module), (operator, _in_operator))
    for pattern, matches in globs:
        if pattern is not None:
            chosen &= matches(graph, pattern)
    if on_device is not None:
        chosen &= graph.on_device == on_device
    if rank is not None:
        chosen &= _of_rank(graph, rank)
    return chosen & where(graph) if where else chosen


def parse_selection(text: str) -> dict[str, str]:
    """Conditions for `select` from text such as `stage=backward+kind=gemm`.

    Raises:
        GraphError: if the text does not have this form.
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
        raise GraphError(f"{rank!r} is not a rank number")
    of_rank: Mask = (graph.threads["rank"] == int(rank))[graph.tasks["thread"]]
    return of_rank


def _equal(graph: Graph, column: str, value: str) -> Mask:
    if value not in _VALUES[column]:
        raise GraphError(f"expected a {column} of {', '.join(_VALUES[column])}; found {value!r}")
    return graph.tasks.text(column).mask(value)


def _named(graph: Graph, pattern: str) -> Mask:
    return matching(graph.tasks.text("name"), pattern)


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
