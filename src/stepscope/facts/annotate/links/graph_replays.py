"""Work replayed from CUDA graphs has the stage, module and lines of what was captured.

A graph that a file replays is paired with the captures of the same work: of kernels of the same
names where captures have names (HIP), else of the same kinds. The nodes of a graph are in order of
capture by their ids, or by time where all run on one stream. Graphs whose captures look alike are in
order of capture if there are as many; what fits several captures has what those agree on.

Source: `graph id` and `graph node id` among the arguments of Kineto's kernels; what
torch/cuda/_annotate_cuda_graph_trace.py (PyTorch 2.13) adds to them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.links.captured_graphs import CapturedNode, Captures, captures_of, with_captures
from stepscope.facts.annotate.links.launches import (
    device_work,
    is_graph_launch,
    kind_of_work,
    launch_of,
    recorded_ids,
)
from stepscope.trace.arguments import parse
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.schema import FRAMES, INFERENCE_STAGES, ORIGINS, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_GRAPH_ID = re.compile(rb'"graph id"\s*:\s*"?(\d{1,20})')
_NODE_ID = re.compile(rb'"graph node id"\s*:\s*"?(\d{1,20})')
_ANNOTATION = re.compile(rb'"(module_fqn|annotation|str)"\s*:')
_KEPT_STAGES = [STAGES.index(stage) for stage in (*INFERENCE_STAGES, "evaluation", "checkpointing")]
_KERNEL, _UNKNOWN = 0, -1


def replayed(trace: Trace) -> Mask:
    """Device work that graph launches started, bool, shape (events,)."""
    caller = launch_of(trace)
    launches = np.append(trace.events.text("name").where(is_graph_launch), False)
    return device_work(trace) & launches[caller]


def link_replays(trace: Trace) -> Trace:
    """Give replayed work the stage and the frames of the operator that was captured.

    `events.origin` of such work is the row of its node in `origins`, from which
    `replayed_modules` has its module.
    """
    rows = np.flatnonzero(replayed(trace))
    if not len(rows):
        return trace
    captures = captures_of(trace)
    numbers = {node: number for number, node in enumerate(captures.nodes)}
    node = _captured(trace, rows, captures, numbers)
    captures = replace(captures, nodes=[*numbers])
    known = [each.frame >= 0 and each.module is not None for each in numbers]
    trace = _warn_unknown(trace, rows[~np.array([*known, False])[node]], bool(captures.graphs))
    rows, node = rows[node >= 0], node[node >= 0]
    if not len(rows):
        return trace
    origin, stage = trace.events["origin"].copy(), trace.events["stage"].copy()
    origin[rows] = node
    captured = np.array([STAGES.index(each.stage) if each.stage else _UNKNOWN for each in numbers])[node]
    takes = (captured >= 0) & ~np.isin(stage[rows], _KEPT_STAGES)
    stage[rows[takes]] = captured[takes]
    trace = trace.with_events(origin=origin, stage=Text(stage.astype(np.int8), STAGES))
    return _with_origins(with_captures(trace, captures), captures)


def replayed_modules(trace: Trace) -> tuple[Ids, list[str], dict[str, str]]:
    """Work that `link_replays` has linked, the path of the module of each, and classes by path."""
    captures = captures_of(trace)
    linked = replayed(trace) & (trace.events["origin"] >= 0) & bool(captures.nodes)
    rows = np.flatnonzero(linked)
    paths = [captures.nodes[origin].module or "" for origin in trace.events["origin"][rows].tolist()]
    return rows, paths, captures.classes


def _with_origins(trace: Trace, captures: Captures) -> Trace:
    """A row of `origins` for each node, and of `frames` for each frame."""
    nodes, frames = captures.nodes, captures.frames
    origins: dict[str, Any] = {
        "first": np.arange(len(nodes)),
        "scope": [node.operator for node in nodes],
        "frame": [node.frame for node in nodes],
        "share": np.ones(len(nodes)),
        "role": [None] * len(nodes),
    }
    fields = "parent", "file", "line", "function"
    places = {field: [frame[at] for frame in frames] for at, field in enumerate(fields)}
    return trace.with_table(Table(ORIGINS, origins)).with_table(Table(FRAMES, places))


def _warn_unknown(trace: Trace, unknown: Ids, has_captures: bool) -> Trace:
    if not len(unknown):
        return trace
    total = milliseconds(trace.events["duration_ns"][unknown].sum())
    why = "the file shows no capture"
    if has_captures:
        why = "no capture with Python stacks fits it, or several that differ do"
    message = (
        f"work replayed from CUDA graphs ({total} in all) lacks the module or line of its operator: {why}; "
        "give the trace of its capture with --graph-capture"
    )
    return trace.with_warnings([("graph_replays", message, len(unknown))])


# -- the graphs that were replayed


class _Graph(NamedTuple):
    """A graph that was replayed, as items that run once in each replay."""

    items: tuple[tuple[int, str], ...]  # kind and kernel, in order of capture, or sorted
    rows: Ids  # positions of the work of all replays among replayed work
    item: Ids  # of each of them, a position in `items`
    has_ids: bool  # which show the order
    has_order: bool  # by ids, or by time on one stream; of sorted items, those of one kernel have it


def _graphs(trace: Trace, rows: Ids) -> Iterator[_Graph]:
    """The graphs in order of their ids; without ids, replays of the same work are one graph."""
    names, stream = trace.events.text("name"), trace.events["track"][rows]
    kind = kind_of_work(trace.events.text("category"), rows.astype(np.int32)).astype(np.int64)
    name = np.where(kind == _KERNEL, names.codes[rows], _UNKNOWN)
    graph, node = _graphs_and_nodes(trace, rows, np.stack([kind, name, stream], axis=1))
    order = np.lexsort((node, graph))
    order = order[node[order] > 0]
    for part in np.split(order, np.flatnonzero(np.diff(graph[order])) + 1) if len(order) else ():
        _, first, item = np.unique(node[part], return_index=True, return_inverse=True)
        codes = zip(kind[part[first]].tolist(), name[part[first]].tolist(), strict=True)
        items = [(of_kind, names.values[code] if code >= 0 else "") for of_kind, code in codes]
        has_ids = bool(graph[part[0]] >= 0)
        has_order = has_ids or len(np.unique(stream[part[first]])) == 1
        if not has_order:
            place = sorted(range(len(items)), key=items.__getitem__)
            items, item = sorted(items), np.argsort(place)[item]
        yield _Graph(tuple(items), part, item, has_ids, has_order)


def _graphs_and_nodes(trace: Trace, rows: Ids, work: Ids) -> tuple[Ids, Ids]:
    """Ids as recorded; else a negative graph for replays of the same work, and the position in them.

    No node is known where work lacks an id that other work of its replay has, nor in a replay
    without ids in which one kernel runs on several streams, as nothing shows its order.

    Args:
        work: kind, kernel and stream of each, shape (rows, 3).
    """
    graph, node = recorded_ids(trace, rows, _GRAPH_ID), recorded_ids(trace, rows, _NODE_ID)
    graph = np.where(graph > 0, graph, node >> 32)  # CUPTI's id of a node begins with that of its graph
    launch = launch_of(trace)[rows]
    order = np.lexsort((trace.events["start_ns"][rows], launch))
    same: dict[bytes, int] = {}
    for replay in np.split(order, np.flatnonzero(np.diff(launch[order])) + 1):
        distinct = np.unique(work[replay], axis=0)
        if (node[replay] > 0).any() or len(distinct) > len(np.unique(distinct[:, :2], axis=0)):
            continue
        if len(np.unique(distinct[:, 2])) > 1:
            replay = replay[np.lexsort(work[replay, 1::-1].T)]
        graph[replay] = ~same.setdefault(work[replay].tobytes(), len(same))
        node[replay] = np.arange(1, len(replay) + 1)
    return graph, node


# -- paired with captures


def _captured(trace: Trace, rows: Ids, captures: Captures, numbers: dict[CapturedNode, int]) -> Ids:
    """The number of the node of each piece of replayed work, -1 if unknown; `numbers` gets new ones."""
    result = np.full(len(rows), _UNKNOWN, np.int64)
    for graph, nodes in _paired(list(_graphs(trace, rows)), captures) if captures.graphs else ():
        number = [numbers.setdefault(node, len(numbers)) for node in nodes]
        result[graph.rows] = np.array(number)[graph.item]
    unknown = np.flatnonzero(result < 0)
    unknown = unknown[np.argsort(trace.events["source"][rows[unknown]])]
    texts = trace.arguments.texts(trace.events["source"][rows[unknown]])
    for row, text in zip(unknown.tolist(), texts, strict=True):
        if _ANNOTATION.search(text):  # PyTorch's `mark_kernels` took a text, or keys of the user's
            arguments = parse(text)
            label = arguments.get("str") or arguments.get("annotation") or ""
            node = CapturedNode(_KERNEL, "", str(label), str(arguments.get("module_fqn", "")))
            result[row] = numbers.setdefault(node, len(numbers))
    return result


def _paired(graphs: Sequence[_Graph], captures: Captures) -> Iterator[tuple[_Graph, list[CapturedNode]]]:
    """Graphs that fit captures, each with the nodes of its items.

    More graphs than captures are not all from these; as many are in their order.
    """
    captured, fits = _fits(graphs, captures)
    rivals = Counter(fits)
    following = {fit: iter(fit) for fit in rivals}
    nodes: dict[tuple[int, ...], list[CapturedNode]] = {}
    for graph, fit in zip(graphs, fits, strict=True):
        if graph.has_ids and rivals[fit] == len(fit):
            fit = (next(following[fit]),)
        if not fit or rivals[fit] > len(fit):
            continue
        if fit not in nodes:
            several = zip(*(captured[number] for number in fit), strict=True)
            nodes[fit] = [_agreed([captures.nodes[node] for node in set(of_item)]) for of_item in several]
        yield graph, nodes[fit]


def _fits(graphs: Sequence[_Graph], captures: Captures) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """The nodes of each capture, in order and sorted; and for each graph those of the same work.

    Where kernels of captures have no names, their kinds in order are the work.
    """
    captured: list[list[int]] = []
    same: dict[Hashable, tuple[int, ...]] = defaultdict(tuple)
    items = [(node.kind, node.kernel) for node in captures.nodes]
    for nodes in captures.graphs:
        for has_order in (True, False):
            captured.append(nodes if has_order else sorted(nodes, key=items.__getitem__))
            same[has_order, tuple(items[node] for node in captured[-1])] += (len(captured) - 1,)
    fits = []
    for graph in graphs:
        kinds = tuple((kind, "") for kind, _ in graph.items) if graph.has_order else ()
        fits.append(same[graph.has_order, graph.items] or same[True, kinds])
    return captured, fits


def _agreed(nodes: Sequence[CapturedNode]) -> CapturedNode:
    """What several nodes have in common."""
    unknown = CapturedNode(_KERNEL, module=None)
    fields = zip(zip(*nodes, strict=True), unknown, strict=True)
    return CapturedNode._make(values[0] if len(set(values)) == 1 else none for values, none in fields)
