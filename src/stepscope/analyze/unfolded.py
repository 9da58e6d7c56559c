"""A calling-context tree as a trace of one step, so that the same rules search and measure both.

Each node becomes one event as long as all its calls together; calls lie side by side in the event
around them, backward work on a track of its own, device work on a third. What lies beside what says
nothing about when it ran: there is no idle time in such a trace, and no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.kinds import kind_of
from stepscope.annotate.marks import stage_of_names
from stepscope.contexts import ContextTree
from stepscope.trace.frame_name import FrameName
from stepscope.trace.nesting import inherit, self_times
from stepscope.trace.order import inverse
from stepscope.trace.schema import (
    CONTEXT_KINDS,
    DEVICE_WORK,
    EVENTS,
    KERNEL_KINDS,
    LAUNCHES,
    MODULES,
    STAGES,
    STEPS,
    TRACKS,
    VIAS,
)
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
_CATEGORY = {
    "operator": "cpu_op", "annotation": "annotation", "step": "annotation", "python": "python",
    "module": "python", "native": "python", "runtime": "runtime", "sync": "sync",
    **{name: name for name in DEVICE_WORK},
}  # fmt: skip
_HOST, _AUTOGRAD, _DEVICE = range(3)


@dataclass(frozen=True)
class Unfolded:
    """A tree as a trace.

    Attributes:
        trace: with one event for each node that was called or ran.
        node: contexts.id of each event, int64, shape (events,).
        calls: how often each was called, float64, shape (events,).
        steps: training steps in it: how often the optimizer stepped, at least 1.
    """

    trace: Trace
    node: Ids
    calls: NDArray[np.float64]
    steps: int


def unfold(tree: ContextTree, metadata: Metadata) -> Unfolded:
    """The tree as a trace of one step."""
    steps = _steps(tree)
    chosen = np.flatnonzero(tree.nodes.text("kind").mask(*_CATEGORY) & ~_rare(tree, steps))
    place = np.append(np.full(len(tree), -1), -1)
    place[chosen] = np.arange(len(chosen))
    above = _nearest(tree, place)[chosen]
    track, via = _tracks(tree, chosen)
    parent = np.where((via == VIAS.index("call")) & (track != _DEVICE), above, -1)
    calls, length = _measured(tree, chosen, parent, track)
    start = _laid_out(parent, length, track)
    start[track == _AUTOGRAD] += _end(start, length, track == _HOST)
    order, rank = _by_start(start)
    columns = _columns(tree, chosen[order]) | {
        "parent": rank[parent][order], "track": track[order], "start_ns": start[order],
        "duration_ns": length[order], "step": np.zeros(len(order), np.int64),
        "self_ns": self_times(rank[parent][order].astype(np.int32), start[order], length[order]),
        "forward_event": rank[np.where(via == VIAS.index("backward"), above, -1)][order],
    }  # fmt: skip
    launched = (track == _DEVICE) & (above >= 0)
    tables = {
        "events": Table(EVENTS, columns),
        "tracks": _track_table(),
        "modules": _module_table(tree),
        "steps": _step_table(_end(start, length, np.ones(len(start), np.bool_))),
        "launches": Table(
            LAUNCHES, {"cpu_event": rank[above[launched]], "device_event": rank[:-1][launched]}
        ),
    }
    return Unfolded(Trace(tables, metadata), chosen[order], calls[order], steps)


def _by_start(start: Ids) -> tuple[Ids, Ids]:
    """The order of start, and the place in it of each event; that of -1 is -1."""
    order = np.argsort(start, kind="stable").astype(np.int64)
    return order, np.append(inverse(order), -1)


def _steps(tree: ContextTree) -> int:
    """How often an optimizer stepped: of several, the one that did so least often."""
    rows = tree.search(r"^Optimizer\.step#")
    count = tree.own("call_ns").count if tree.has("call_ns") else np.zeros(len(tree), np.int64)
    each = {tree.label(row): 0 for row in rows.tolist()}
    for row in rows.tolist():
        each[tree.label(row)] += int(count[row])
    return max(min(each.values(), default=1), 1)


def _rare(tree: ContextTree, steps: int) -> Mask:
    """Calls made in fewer than half of the steps: the program's beginning and end."""
    count = sum((tree.own(name).count for name in ("call_ns", "device_ns") if tree.has(name)),
                np.zeros(len(tree), np.int64))  # fmt: skip
    rare: Mask = (count > 0) & (2 * count < steps)
    return rare


def _end(start: Ids, length: Ids, rows: Mask) -> int:
    return int((start + length)[rows].max(initial=0))


def _nearest(tree: ContextTree, place: Ids) -> Ids:
    """The event of the nearest node above each that has one, -1 where none has."""
    own = inherit(tree.nodes["parent"], place[:-1])
    return np.append(own, -1)[tree.parent].astype(np.int64)


def _tracks(tree: ContextTree, chosen: Ids) -> tuple[Ids, Ids]:
    via = tree.nodes["via"][chosen].astype(np.int64)
    later = np.where(tree.nodes["via"] == VIAS.index("backward"), 1, -1)
    backward = inherit(tree.nodes["parent"], later) > 0
    device = tree.nodes.text("kind").mask(*DEVICE_WORK)
    track = np.where(device, _DEVICE, np.where(backward, _AUTOGRAD, _HOST))
    return track[chosen].astype(np.int64), via


def _measured(
    tree: ContextTree, chosen: Ids, parent: Ids, track: Ids
) -> tuple[NDArray[np.float64], Ids]:
    """Calls and length of each event: what was measured, and no less than what it calls takes."""
    calls, length = np.zeros(len(chosen)), np.zeros(len(chosen))
    for metric in ("call_ns", "device_ns"):
        if tree.has(metric):
            own = tree.own(metric)
            calls += own.count[chosen]
            length += own.sum[chosen]
    for row in range(len(chosen) - 1, -1, -1):
        outer = parent[row]
        if outer >= 0 and track[outer] == track[row] and not _counted(tree, chosen[outer]):
            length[outer] += length[row]
            calls[outer] = max(calls[outer], calls[row])
    return calls, np.rint(length).astype(np.int64)


def _counted(tree: ContextTree, node: int) -> bool:
    return tree.has("call_ns") and bool(tree.own("call_ns").count[node])


def _laid_out(parent: Ids, length: Ids, track: Ids) -> Ids:
    """The start of each event: behind the one before it in the same event, or on the track."""
    start = np.zeros(len(parent), np.int64)
    free = [0, 0, 0]
    inside: dict[int, int] = {}
    for row, (outer, lane) in enumerate(zip(parent.tolist(), track.tolist(), strict=True)):
        begin = free[lane] if outer < 0 else inside[outer]
        start[row] = inside[row] = begin
        if outer < 0:
            free[lane] += int(length[row])
        else:
            inside[outer] += int(length[row])
    return start


def _columns(tree: ContextTree, chosen: Ids) -> dict[str, Any]:
    nodes = tree.nodes.take(chosen)
    category, plain = Text.of(nodes.text("kind").map(_CATEGORY.get)), nodes.text("name")
    told = stage_of_names(plain, category.recoded(EVENTS.column("category").values))
    stage = _stages(tree, chosen, told)
    module = _module_of(tree)[chosen]
    device = nodes.text("kind").mask(*DEVICE_WORK)
    work = device if device.any() else nodes.text("kind").mask("operator")
    kinds = [kind_of(name or "") if works else None
             for name, works in zip(plain, work.tolist(), strict=True)]  # fmt: skip
    return {
        "name": Text.of(_name(row) for row in nodes.rows()),
        "category": category,
        "stage": stage,
        "module": module,
        "kind": Text.of(kinds).recoded(KERNEL_KINDS),
    }


def _name(row: dict[str, Any]) -> str:
    if row["kind"] == "python" and row["file"]:
        return str(FrameName(row["file"], row["line"] or 0, row["name"]))
    return str(row["name"])


def _stages(tree: ContextTree, chosen: Ids, told: Text) -> Text:
    """The stage that a name tells holds below it; what runs backward is backward; else forward."""
    own = np.full(len(tree), -1, np.int64)
    own[chosen] = told.codes
    known = tree.nodes["stage"]
    own = np.where(known >= 0, known, own)
    own[tree.nodes["via"] == VIAS.index("backward")] = STAGES.index("backward")
    found = inherit(tree.nodes["parent"], own)
    return Text(np.where(found < 0, STAGES.index("forward"), found)[chosen].astype(np.int8), STAGES)


def _module_of(tree: ContextTree) -> Ids:
    """The row of the module table of each node, -1 outside all modules."""
    modules = tree.nodes["kind"] == CONTEXT_KINDS.index("module")
    return inherit(tree.nodes["parent"], np.where(modules, np.cumsum(modules) - 1, -1)).astype(
        np.int64
    )


def _module_table(tree: ContextTree) -> Table:
    rows = tree.nodes.take(tree.nodes["kind"] == CONTEXT_KINDS.index("module"))
    columns: dict[str, Any] = {
        "parent": np.full(len(rows), -1),
        "path": rows.text("name"),
        "name": rows.text("name"),
        "file": rows.text("file"),
        "line": rows["line"],
    }
    return Table(MODULES, columns)


def _track_table() -> Table:
    names = ["calls", "autograd", "device"]
    columns: dict[str, Any] = {
        "kind": ["cpu", "cpu", "device"],
        "name": names,
        "process": ["0"] * 3,
        "thread": names,
        "device": [-1, -1, 0],
        "stream": [-1, -1, 0],
    }
    return Table(TRACKS, columns)


def _step_table(end_ns: int) -> Table:
    columns: dict[str, Any] = {"step": [0], "start_ns": [0], "end_ns": [max(end_ns, 1)],
                               "evidence": ["whole_trace"]}  # fmt: skip
    return Table(STEPS, columns)
