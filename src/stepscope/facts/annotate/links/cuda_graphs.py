"""CUDA graphs: work that they replay has the stage, module and lines of what was captured.

A capture shows launch calls that start no work; a replay shows work that one call starts. What is
known of captures is a property of the trace, whether it is from the trace itself or from another.

A graph that a file replays is paired with the captures of the same work: of kernels of the same
names where captures have names (HIP), else of the same kinds. The nodes of a graph are in order of
capture by their ids, or by time where all run on one stream. Graphs whose captures look alike are in
order of capture if there are as many; what fits several captures has what those agree on.

Source: `graph id` and `graph node id` among the arguments of Kineto's kernels; what
torch/cuda/_annotate_cuda_graph_trace.py (PyTorch 2.13) adds to them; `kernel` among the arguments of
HIP's launch calls (roctracer in libkineto).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from stepscope.base.arrays import Codes8, Ids, Ids32, Mask
from stepscope.base.typed_data import convert
from stepscope.facts.annotate.links.launches import (
    device_work,
    is_graph_launch,
    kind_of_work,
    launch_calls,
    launch_of,
    recorded_ids,
)
from stepscope.facts.annotate.range_names import has_lines, operators, parse_lines
from stepscope.trace.arguments import parse
from stepscope.trace.frame_name import FrameName, is_users_frame
from stepscope.trace.nesting import inherit, innermost
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.schema import FRAMES, INFERENCE_STAGES, ORIGINS, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

CAPTURED = "captured_graphs"  # property of a trace: what is known of captures
_BEGIN = re.compile(r"^(cu|cuda|hip)StreamBeginCapture")
_END = re.compile(r"^(cu|cuda|hip)StreamEndCapture")
_NO_WORK = re.compile(r"HostFunc|Callback")  # runs on the CPU
_GRAPH_ID = re.compile(rb'"graph id"\s*:\s*"?(\d{1,20})')
_NODE_ID = re.compile(rb'"graph node id"\s*:\s*"?(\d{1,20})')
_ANNOTATION = re.compile(rb'"(module_fqn|annotation|str)"\s*:')
_KEPT_STAGES = [STAGES.index(stage) for stage in (*INFERENCE_STAGES, "evaluation", "checkpointing")]
_KERNEL, _UNKNOWN = 0, -1


class CapturedNode(NamedTuple):
    """A node of a graph; empty is unknown."""

    kind: int  # of its work, as `launch_calls` counts them
    kernel: str = ""
    operator: str = ""
    module: str | None = ""  # None where captures that fit differ
    stage: str = ""
    frame: int = _UNKNOWN  # the innermost, of `Captures.frames`


CapturedFrame = tuple[int, str, int, str]  # the user's frame around it, file, line, function


class Captures(Struct):
    """Graphs in order of capture, each the positions of its nodes among the distinct `nodes`."""

    graphs: list[list[int]] = []
    nodes: list[CapturedNode] = []
    frames: list[CapturedFrame] = []
    classes: dict[str, str] = {}  # of modules, by path


def with_captures(trace: Trace, captures: Captures) -> Trace:
    """The trace with what is known of captures, for `captures_of`."""
    return trace.with_metadata(properties={**trace.metadata.properties, CAPTURED: to_builtins(captures)})


def captures_of(trace: Trace) -> Captures:
    """What is known of the captures of a trace."""
    return convert(trace.metadata.properties.get(CAPTURED, {}), Captures)


def capture_of(trace: Trace) -> Ids:
    """The number of the capture that each event begins in, any thread's, -1 for none, shape (events,).

    An end without a begin is of a capture that the recording began in. A capture within another, as
    of the body of a conditional node, has a number of its own.
    """
    names = trace.events.text("name")
    begins, ends = (names.where(lambda name, of=of: bool(of.match(name))) for of in (_BEGIN, _END))  # type: ignore[misc]
    change = begins.astype(np.int64) - ends
    count = -int(np.cumsum(change).min(initial=0))
    marks, running = np.flatnonzero(change), list(range(count))
    innermost = [running[-1] if running else _UNKNOWN]
    for begin in begins[marks].tolist():
        if begin:
            running.append(count)
            count += 1
        else:
            running.pop()
        innermost.append(running[-1] if running else _UNKNOWN)
    return np.repeat(innermost, np.diff(marks, prepend=0, append=len(change)))


def recorded_captures(trace: Trace) -> Captures:
    """The graphs whose capture an annotated trace shows; none in most traces."""
    capture, frames, numbers = capture_of(trace), _Frames(trace), dict[CapturedNode, int]()
    graphs: dict[int, list[int]] = {}
    calls, kinds = _without_work(trace)
    inside = capture[calls] >= 0
    nodes = _nodes(trace, calls[inside], kinds[inside], frames)
    for graph, node in zip(capture[calls[inside]].tolist(), nodes, strict=True):
        graphs.setdefault(graph, []).append(numbers.setdefault(node, len(numbers)))
    columns = (map(str, trace["modules"].text(column)) for column in ("path", "class"))
    in_order = [graphs[graph] for graph in sorted(graphs)]
    return Captures(in_order, [*numbers], [*frames.numbers], dict(zip(*columns, strict=True)))


def _without_work(trace: Trace) -> tuple[Ids, Codes8]:
    """Launch calls that start no work, and the kind of work that they name."""
    calls, kinds = launch_calls(trace)
    names = trace.events.text("name")
    idle = ~np.isin(calls, trace["launches"]["cpu_event"])
    idle &= ~names.where(lambda name: is_graph_launch(name) or bool(_NO_WORK.search(name)))[calls]
    return calls[idle], kinds[idle]


def _nodes(trace: Trace, calls: Ids, kinds: Codes8, frames: "_Frames") -> Iterator[CapturedNode]:
    events = trace.events
    names, paths, stages = events.text("name"), trace["modules"].text("path"), events.text("stage")
    operator = innermost(events["parent"], operators(events))[calls]
    columns = calls.tolist(), kinds.tolist(), operator.tolist(), events["module"][calls].tolist()
    for row, kind, around, module, arguments in zip(*columns, trace.arguments_of(calls), strict=True):
        kernel, name = str(arguments.get("kernel", "")), names[around] if around >= 0 else ""
        path, stage = paths[module] if module >= 0 else "", stages[row] or ""
        stage = "forward" if path and stage in ("", "other") else stage  # a capture is no step
        yield CapturedNode(kind, kernel, name or "", path or "", stage, frames.of(row))


class _Frames:
    """The user's Python frames, or recorded lines, around calls; of backward those of forward."""

    def __init__(self, trace: Trace) -> None:
        self.numbers: dict[CapturedFrame, int] = {}
        self._parent, self._names = trace.events["parent"], trace.events.text("name")
        self._forward: Ids32 = inherit(self._parent, trace.events["forward_event"])
        self._around: dict[int, int] = {_UNKNOWN: _UNKNOWN}

    def of(self, row: int) -> int:
        """The innermost frame around a call, -1 if unknown."""
        frame = self._innermost(int(self._forward[row]))
        return frame if frame >= 0 else self._innermost(row)

    def _innermost(self, row: int) -> int:
        path = []
        while row not in self._around:
            path.append(row)
            row = int(self._parent[row])
        frame = self._around[row]
        for inside in reversed(path):
            frame = self._around[inside] = self._below(frame, self._names[inside] or "")
        return frame

    def _below(self, frame: int, name: str) -> int:
        places: list[tuple[str, int, str]] = []
        if has_lines(name):  # all lines that led here
            frame, places = _UNKNOWN, [(file, line, "") for file, line in parse_lines(name)]
        elif is_users_frame(name) and (called := FrameName.of(name)):
            places = [called]
        for place in places:
            frame = self.numbers.setdefault((frame, *place), len(self.numbers))
        return frame


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
        "give the trace of its capture with the option graph-capture"
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
    without ids in which one kernel runs on several streams, as nothing shows its order. `work` has
    kind, kernel and stream of each, shape (rows, 3).
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
