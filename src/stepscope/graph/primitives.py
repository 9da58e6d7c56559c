"""The primitives of what-ifs: select tasks, scale, remove and insert them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Ids, Ids32, Mask, Times
from stepscope.errors import GraphError
from stepscope.graph.graph import Graph
from stepscope.graph.graph_schema import COMMUNICATION, EDGE_KINDS, LAUNCH, LINKS, SYNC, TASKS, THREADS
from stepscope.trace.concat import stacked
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Table, Text

_SHORT_PYTHON_NS = 50_000  # from one call to the next Python takes less; longer gaps are work of the loop
_MOST_DIGITS = 18  # of a rank: as many fit 64 bits
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
    step: int | None = None,
    where: Callable[[Graph], Mask] | None = None,
) -> Mask:
    """Tasks that meet every given condition; marks of steps are never selected.

    Args:
        stage, kind, category: one of the trace's closed lists.
        module: a glob on the path of the module; submodules match too.
        name: a glob on the task's name.
        operator: a glob on the names of the events around the task, or around its launch.
        on_device: only device work, or only the CPU's.
        rank: only tasks of this rank, in a graph of several ranks.
        step: only tasks of this step, one of `graph.window.steps`.
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
    if name is not None:
        chosen &= matching(graph.tasks.text("name"), name)
    for pattern, matches in ((module, _in_module), (operator, _in_operator)):
        if pattern is not None:
            chosen &= matches(graph, pattern)
    if on_device is not None:
        chosen &= graph.on_device == on_device
    if rank is not None:
        chosen &= _of_rank(graph, rank)
    if step is not None:
        chosen &= graph.tasks["step"] == step
    return chosen & where(graph) if where else chosen


def parse_selection(text: str) -> dict[str, str]:
    """Conditions for `select` from text such as `stage=backward+kind=gemm`; GraphError for another form."""
    known = ("stage", "module", "name", "operator", "kind", "category", "rank")
    pairs = [part.partition("=") for part in text.split("+")]
    for key, _, value in pairs:
        if key not in known or not value:
            raise GraphError(
                f"expected KEY=VALUE[+KEY=VALUE…] with KEY one of {', '.join(known)}; found {text!r}"
            )
    return {key: value for key, _, value in pairs}


def matching(texts: Text, pattern: str) -> Mask:
    return texts.where(lambda text: fnmatchcase(text, pattern))


def _of_rank(graph: Graph, rank: int | str) -> Mask:
    if not str(rank).isdecimal() or len(str(rank)) > _MOST_DIGITS:
        raise GraphError(f"{str(rank)[:_MOST_DIGITS]!r} is not a rank number")
    return (graph.threads["rank"] == int(rank))[graph.tasks["thread"]]


def _equal(graph: Graph, column: str, value: str) -> Mask:
    if value not in _VALUES[column]:
        raise GraphError(f"expected a {column} of {', '.join(_VALUES[column])}; found {value!r}")
    return graph.tasks.text(column).mask(value)


def _in_module(graph: Graph, pattern: str) -> Mask:
    paths = graph.trace["modules"].text("path")
    return np.append(matching(paths, pattern) | matching(paths, f"{pattern}.*"), False)[graph.tasks["module"]]


def _in_operator(graph: Graph, pattern: str) -> Mask:
    trace, event = graph.trace, graph.tasks["event"]
    named = matching(trace.events.text("name"), pattern)
    around = inherit(trace.events["parent"], np.where(named, 1, -1)) > 0
    launches = trace["launches"]
    around[launches["device_event"]] |= around[launches["cpu_event"]]
    return np.append(around, False)[event]


def scale(graph: Graph, tasks: Mask, factor: ArrayLike, gaps: bool = False) -> Graph:
    """The graph in which some tasks take `factor` times as long.

    Args:
        tasks: tasks to scale, bool, shape (tasks,).
        factor: at least 0; a single one, or one per selected task.
        gaps: whether the gaps after them are scaled too.

    Raises:
        GraphError: if a factor is negative or not a number.

    Example:
        >>> scale(graph, select(graph, kind="gemm"), 1 / 3)  # doctest: +SKIP

    Source: DAYDREAM section 4.4, "shrink/scale".
    """
    factors = np.asarray(factor, np.float64)
    if not (np.isfinite(factors) & (factors >= 0)).all():
        raise GraphError(f"expected a factor of at least 0, found {factor!r}")
    columns = {}
    for name in ("duration_ns", "gap_ns") if gaps else ("duration_ns",):
        column = graph.tasks[name].copy()
        column[tasks] = np.rint(column[tasks] * factors)
        columns[name] = column
    return graph.with_tasks(**columns)


def remove(graph: Graph, tasks: Mask, calls: bool = True) -> Graph:
    """The graph without some tasks and the gaps between them.

    Long Python after the last of them stays. Tasks that waited for a removed task wait for its
    predecessor on the thread. The next task of the stream takes over the dependencies of a removed
    device task. Those of a removed CPU wait are dropped.

    Args:
        tasks: tasks to remove, bool, shape (tasks,); marks of steps always stay.
        calls: whether to remove calls all of whose device work is removed.

    Source: DAYDREAM section 4.4, figure 4.
    """
    return without(graph, removed_by(graph, tasks, calls))


def removed_by(graph: Graph, tasks: Mask, calls: bool = True) -> Mask:
    """All tasks that `remove` with these arguments removes, bool, shape (tasks,)."""
    gone: Mask = tasks & (graph.tasks["mark"] == 0)
    return gone | _only_launch(graph, gone & graph.on_device) if calls else gone


def without(graph: Graph, gone: Mask) -> Graph:
    """The graph without exactly the tasks that `removed_by` found."""
    links = graph.links
    source, target, kind = links["source"], links["target"], links["kind"]
    lost = gone[target] & (kind == LAUNCH)
    lost |= gone[target] & ~graph.on_device[target] & np.isin(kind, (SYNC, COMMUNICATION))
    source, target = _instead(graph.tasks["thread"], gone, source, target)
    keep = ~lost & (source >= 0) & (target >= 0)
    kept = links.take(keep).with_columns(source=source[keep], target=target[keep])
    tasks = graph.tasks.with_columns(gap_ns=_gaps_without(graph, gone))
    return replace(graph, tasks=tasks.take(~gone), links=kept)


def _gaps_without(graph: Graph, gone: Mask) -> Times:
    """The gaps of all tasks, ns, with what stays of those after removed ones in front of these."""
    thread, gap = graph.tasks["thread"], graph.tasks["gap_ns"].copy()
    last = gone & np.append((thread[1:] != thread[:-1]) | ~gone[1:], True) & ~graph.on_device
    rows = np.flatnonzero(last & (gap > _SHORT_PYTHON_NS))
    before = last_on_thread(graph, ~gone, rows)
    np.add.at(gap, before[before >= 0], gap[rows[before >= 0]] - _SHORT_PYTHON_NS)
    return gap


def last_on_thread(graph: Graph, chosen: Mask, tasks: Ids) -> Ids:
    """The last chosen task up to each of some `tasks` on its thread, itself included; -1 for none."""
    thread = graph.tasks["thread"]
    last = np.maximum.accumulate(np.where(chosen, np.arange(len(graph)), -1))[tasks]
    return np.where((last >= 0) & (thread[last] == thread[tasks]), last, -1)


def _only_launch(graph: Graph, gone: Mask) -> Mask:
    """CPU tasks of calls all of whose device work is removed."""
    callers, count = graph.launches["source"], len(graph)
    launched = np.bincount(callers, minlength=count)
    lost = np.bincount(callers[gone[graph.launches["target"]]], minlength=count)
    calls = (launched > 0) & (launched == lost)
    event = graph.tasks["event"]
    of_call = mask_of(event[calls], int(event.max(initial=-1)) + 2)
    of_call[-1] = False  # for no event
    # A waiting call is several tasks of one event.
    return calls | (~graph.on_device & of_call[event])


def _instead(thread: Ids32, gone: Mask, sources: Ids32, targets: Ids32) -> tuple[Ids, Ids]:
    """The nearest tasks of a thread that stay: at or before sources, at or after targets.

    They are numbered as after the removal; -1 where there is none.
    """
    stays = np.flatnonzero(~gone)
    last = np.cumsum(~gone) - 1  # of those that stay, at or before each task
    of_kept = np.append(thread[stays], -1)
    before, after = last[sources], last[targets] + gone[targets]
    return (
        np.where((before >= 0) & (of_kept[before] == thread[sources]), before, -1),
        np.where(of_kept[after] == thread[targets], after, -1),
    )


def insert(
    graph: Graph, anchors: ArrayLike, names: Sequence[str], in_front: bool = False, **columns: Any
) -> tuple[Graph, Ids]:
    """The graph with a new task after (or in front of) each anchor, on the same thread.

    Args:
        anchors: tasks.id, shape (n,); several new tasks at one anchor keep their order.
        names: names of the new tasks.
        in_front: insert in front of the anchors. The first new task then takes over the anchor's
            dependencies, except its launch.
        columns: further columns of the new tasks, `duration_ns` above all. Other columns are copied
            from the anchor, without gap, event and mark.

    Returns:
        The graph, and the ids of the new tasks in it.

    Source: DAYDREAM section 4.4, figure 4.
    """
    place = np.asarray(anchors, np.int64)
    order = np.argsort(place, kind="stable")
    where = place[order] + (0 if in_front else 1)
    rows = np.insert(np.arange(len(graph)), where, place[order])
    new = np.empty(len(place), np.int64)
    new[order] = where + np.arange(len(place))
    tasks = graph.tasks.take(rows)
    fresh = {"gap_ns": 0, "earliest_ns": 0, "event": -1, "mark": 0, "bytes": -1, **columns}
    changed = {name: _with_values(tasks, name, new, values) for name, values in fresh.items()}
    changed["name"] = _renamed(tasks.text("name"), new, names)
    number = numbers_after(len(rows), new)
    links = _renumbered(graph.links, number)
    if in_front:
        links = _first_waits(links, number[place], new)
    return replace(graph, tasks=tasks.with_columns(**changed), links=links), new


def numbers_after(count: int, new: ArrayLike) -> Ids:
    """The new ids of the old tasks in a graph of `count` tasks, of which `new` are new.

    Example:
        >>> numbers_after(5, [1, 4]).tolist()
        [0, 2, 3]
    """
    return np.flatnonzero(~mask_of(np.asarray(new, np.int64), count))


def append(graph: Graph, thread: ArrayLike, names: Sequence[str], **columns: Any) -> tuple[Graph, Ids]:
    """The graph with tasks at the end of threads, which may be empty; and the tasks' ids."""
    new = Table(TASKS, {"name": Text.of(names), **_filled({"thread": thread, **columns}, len(names))})
    both = stacked([graph.tasks, new])
    order = np.argsort(both["thread"], kind="stable")
    number = inverse(order)
    links = _renumbered(graph.links, number)
    return replace(graph, tasks=both.take(order), links=links), number[len(graph) :]


def add_links(graph: Graph, source: ArrayLike, target: ArrayLike, kind: str, lag_ns: ArrayLike = 0) -> Graph:
    """The graph with additional dependencies of one kind."""
    source, target = np.broadcast_arrays(np.atleast_1d(source), np.atleast_1d(target))
    old = graph.links
    columns: dict[str, Any] = {
        "source": np.concatenate([old["source"], source]),
        "target": np.concatenate([old["target"], target]),
        "lag_ns": np.concatenate([old["lag_ns"], np.broadcast_to(lag_ns, len(source))]),
    }
    codes = np.full(len(source), EDGE_KINDS.index(kind), np.int8)
    columns["kind"] = Text(np.concatenate([old["kind"], codes]), EDGE_KINDS)
    return replace(graph, links=Table(LINKS, columns))


def redirect(graph: Graph, old: ArrayLike, new: ArrayLike) -> Graph:
    """The graph in which tasks that waited for `old` wait for the corresponding `new` instead.

    Launches and the order within threads are unchanged, and so are waits of `new` itself and of
    added tasks that lead to it: the order of `add_links` and `redirect` does not matter.
    """
    links = graph.links
    instead = np.arange(len(graph))
    instead[np.asarray(old, np.int64)] = new
    stays = (links["kind"] == LAUNCH) | _leads_to(graph, np.asarray(new, np.int64))[links["target"]]
    moved = np.where(stays, links["source"], instead[links["source"]])
    return replace(graph, links=links.with_columns(source=moved))


def _leads_to(graph: Graph, new: Ids) -> Mask:
    """Which tasks are among `new`, or were added and lead to one of these by others that were."""
    added = (graph.tasks["event"] < 0) & (graph.tasks["mark"] == 0)
    source, target, thread = graph.links["source"], graph.links["target"], graph.tasks["thread"]
    reached = mask_of(new, len(graph))
    count = -1
    while count != (count := int(reached.sum())):
        reached[source[reached[target] & added[source]]] = True
        reached[:-1] |= reached[1:] & added[:-1] & (thread[1:] == thread[:-1])
    return reached


def add_thread(graph: Graph, name: str, kind: str, device: int, ordered: bool = True) -> tuple[Graph, int]:
    """The graph with an additional thread, and the thread's id."""
    old = graph.threads
    columns: dict[str, Any] = {
        column: np.append(old[column], value)
        for column, value in (("track", -1), ("device", device), ("ordered", ordered), ("main", 0))
    }
    columns["rank"] = np.append(old["rank"], old["rank"][:1] if len(old) else 0)
    for column, text in (("name", name), ("kind", kind)):
        columns[column] = Text.of([*old.text(column), text])
    return replace(graph, threads=Table(THREADS, columns)), len(old)


def _first_waits(links: Table, old: Ids, new: Ids) -> Table:
    """Links to each old task, except launches, go to the first new task in front of it."""
    first = np.arange(max(old.max(initial=-1), links["target"].max(initial=-1)) + 1)
    np.minimum.at(first, old, new)
    moved = np.where(links["kind"] == LAUNCH, links["target"], first[links["target"]])
    return links.with_columns(target=moved)


def _renumbered(links: Table, number: Ids) -> Table:
    return links.with_columns(source=number[links["source"]], target=number[links["target"]])


def _renamed(old: Text, rows: Ids, names: Sequence[str]) -> Text:
    codes = old.codes.astype(np.int32)
    codes[rows] = np.arange(len(rows)) + len(old.values)
    return Text(codes, [*old.values, *names])


def _with_values(tasks: Table, name: str, rows: Ids, values: Any) -> Any:
    listed = TASKS.column(name).values
    column = tasks[name].copy()
    column[rows] = listed.index(values) if isinstance(values, str) else values
    return Text(column, listed) if listed else column


def _filled(columns: dict[str, Any], count: int) -> dict[str, Any]:
    given = {"event": -1, "category": "other", **columns}
    for name, value in given.items():
        if isinstance(value, str):
            given[name] = Text.constant(value, count)
        elif not isinstance(value, Text):
            given[name] = np.broadcast_to(np.asarray(value), count)
    return given
