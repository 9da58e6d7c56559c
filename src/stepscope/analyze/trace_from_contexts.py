"""Convert a calling-context tree to a trace of one step, so that the same rules apply to both.

Each node becomes one event with the total time of its calls. Events are laid out one after the
other inside their parent, backward work on a second track, device work on a third. Positions say
nothing about when an event ran: such a trace has no idle time and no order.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.device.kernel_kinds import kind_of
from stepscope.facts.annotate.range_names import stage_of_names
from stepscope.facts.contexts import ContextTree
from stepscope.facts.contexts.call_paths import levels
from stepscope.trace.frame_name import FrameName
from stepscope.trace.nesting import depths, inherit, is_inside, self_times
from stepscope.trace.row_order import inverse
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

_CATEGORY = {
    "operator": "cpu_op",
    "annotation": "annotation",
    "step": "annotation",
    "python": "python",
    "module": "python",
    "native": "python",
    "runtime": "runtime",
    "sync": "sync",
    **{name: name for name in DEVICE_WORK},
}
_HOST, _AUTOGRAD, _DEVICE = range(3)


class ContextTrace(NamedTuple):
    """A calling-context tree as a trace."""

    trace: Trace  # one event per node that was called or ran
    node: Ids  # contexts.id of each event, int64, shape (events,)
    calls: Floats  # number of calls of each event, float64, shape (events,)
    steps: int  # number of training steps: how often the optimizer stepped, at least 1


def trace_from_contexts(tree: ContextTree, metadata: Metadata) -> ContextTrace:
    steps = _steps(tree)
    rare = _rare(tree, steps)
    chosen = np.flatnonzero(tree.nodes.text("kind").mask(*_CATEGORY) & ~rare)
    nearest = np.append(inherit(tree.nodes["parent"], inverse(chosen, len(tree))), -1)
    above = nearest[tree.parent[chosen]].astype(np.int64)
    track, via = _tracks(tree, chosen)
    parent = np.where((via == VIAS.index("call")) & (track != _DEVICE), above, -1)
    calls, length = _measured(tree, chosen, parent, track, _inside_calls(tree, rare))
    start = _laid_out(parent, length, track)
    start[track == _AUTOGRAD] += _end(start, length, track == _HOST)
    order = np.argsort(start, kind="stable").astype(np.int64)
    rank = np.append(inverse(order), -1)  # the position of each event; -1 stays -1
    columns = _columns(tree, chosen[order]) | {
        "parent": rank[parent][order],
        "track": track[order],
        "start_ns": start[order],
        "duration_ns": length[order],
        "step": np.zeros(len(order), np.int64),
        "self_ns": self_times(rank[parent][order].astype(np.int32), start[order], length[order]),
        "forward_event": rank[np.where(via == VIAS.index("backward"), above, -1)][order],
    }
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
    return ContextTrace(Trace(tables, metadata), chosen[order], calls[order], steps)


def samples_instructions(tree: ContextTree) -> bool:
    """Whether instructions were sampled, which makes launches many times longer: CPU time means nothing."""
    return tree.has("stalls") and tree.has("device_ns")


def _steps(tree: ContextTree) -> int:
    """How often the optimizer stepped; of several optimizers the least."""
    rows = tree.search(r"^Optimizer\.step#")
    count = tree.own("call_ns").count if tree.has("call_ns") else np.zeros(len(tree), np.int64)
    each = {tree.label(row): 0 for row in rows.tolist()}
    for row in rows.tolist():
        each[tree.label(row)] += int(count[row])
    return max(min(each.values(), default=1), 1)


def _rare(tree: ContextTree, steps: int) -> Mask:
    """Calls made in fewer than half of the steps: start and end of the program."""
    count = sum(
        (tree.own(name).count for name in ("call_ns", "device_ns") if tree.has(name)),
        np.zeros(len(tree), np.int64),
    )
    return (count > 0) & (2 * count < steps)


def _end(start: Ids, length: Ids, rows: Mask) -> int:
    return int((start + length)[rows].max(initial=0))


def _tracks(tree: ContextTree, chosen: Ids) -> tuple[Ids, Ids]:
    via = tree.nodes["via"][chosen].astype(np.int64)
    backward = is_inside(tree.nodes["parent"], tree.nodes["via"] == VIAS.index("backward"))
    device = tree.nodes.text("kind").mask(*DEVICE_WORK)
    track = np.where(device, _DEVICE, np.where(backward, _AUTOGRAD, _HOST))
    return track[chosen].astype(np.int64), via


def _inside_calls(tree: ContextTree, rare: Mask) -> Floats:
    """The time of rare calls, such as compilation, in each call around them, ns, shape (nodes,)."""
    parent, called = tree.nodes["parent"].astype(np.int64), tree.nodes["via"] == VIAS.index("call")
    spent = np.where(rare, tree.own("call_ns").sum, 0.0) if tree.has("call_ns") else np.zeros(len(tree))
    for rows in reversed(levels(depths(tree.nodes["parent"]))[1:]):
        inner = rows[called[rows] & ~rare[parent[rows]]]
        np.add.at(spent, parent[inner], spent[inner])
    return spent


def _measured(tree: ContextTree, chosen: Ids, parent: Ids, track: Ids, rare_ns: Floats) -> tuple[Floats, Ids]:
    """Calls and duration of each event, without rare calls: at least the duration of its children.

    While instructions are sampled, only device work has a duration.
    """
    calls, length = np.zeros(len(chosen)), np.zeros(len(chosen))
    for metric in ("call_ns", "device_ns"):
        if tree.has(metric):
            own = tree.own(metric)
            calls += own.count[chosen]
            if metric == "device_ns":
                length += own.sum[chosen]
            elif not samples_instructions(tree):
                length += np.maximum(own.sum - rare_ns, 0.0)[chosen]
    counts = tree.own("call_ns").count if tree.has("call_ns") else np.zeros(len(tree), np.int64)
    for row in range(len(chosen) - 1, -1, -1):
        outer = parent[row]
        if outer >= 0 and track[outer] == track[row] and not counts[chosen[outer]]:
            length[outer] += length[row]
            calls[outer] = max(calls[outer], calls[row])
    return calls, np.rint(length).astype(np.int64)


def _laid_out(parent: Ids, length: Ids, track: Ids) -> Ids:
    """The start of each event: after the previous one in the same parent or on the track."""
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
    named = stage_of_names(plain, category.recoded(EVENTS.column("category").values))
    stage = _stages(tree, chosen, named)
    modules = tree.nodes["kind"] == CONTEXT_KINDS.index("module")
    module = inherit(tree.nodes["parent"], np.where(modules, np.cumsum(modules) - 1, -1))
    device = nodes.text("kind").mask(*DEVICE_WORK)
    work = device if device.any() else nodes.text("kind").mask("operator")
    kinds = [kind_of(name or "") if works else None for name, works in zip(plain, work.tolist(), strict=True)]
    return {
        "name": Text.of(map(name_of_node, nodes.rows())),
        "category": category,
        "stage": stage,
        "module": module[chosen].astype(np.int64),
        "kind": Text.of(kinds).recoded(KERNEL_KINDS),
    }


def name_of_node(row: Mapping[str, Any]) -> str:
    """The name of a row of `contexts` as that of an event."""
    if row["kind"] == "python" and row["file"]:
        return str(FrameName(row["file"], row["line"] or 0, row["name"]))
    return str(row["name"])


def _stages(tree: ContextTree, chosen: Ids, named: Text) -> Text:
    """The stage: from a name, also for all below it; backward for backward work; else forward."""
    own = np.full(len(tree), -1, np.int64)
    own[chosen] = named.codes
    known = tree.nodes["stage"]
    own = np.where(known >= 0, known, own)
    own[tree.nodes["via"] == VIAS.index("backward")] = STAGES.index("backward")
    found = inherit(tree.nodes["parent"], own)
    return Text(np.where(found < 0, STAGES.index("forward"), found)[chosen].astype(np.int8), STAGES)


def _module_table(tree: ContextTree) -> Table:
    rows = tree.nodes.take(tree.nodes["kind"] == CONTEXT_KINDS.index("module"))
    names, files = rows.text("name"), rows.text("file")
    columns: dict[str, Any] = {"path": names, "name": names, "file": files, "line": rows["line"]}
    return Table(MODULES, {"parent": np.full(len(rows), -1), **columns})


def _track_table() -> Table:
    names, device = ["calls", "autograd", "device"], [-1, -1, 0]
    columns: dict[str, Any] = {"name": names, "thread": names, "device": device, "stream": device}
    return Table(TRACKS, {"kind": ["cpu", "cpu", "device"], "process": ["0"] * 3, **columns})


def _step_table(end_ns: int) -> Table:
    begin, end = [0], [max(end_ns, 1)]
    window: dict[str, Any] = {"window_start_ns": begin, "window_end_ns": end, "evidence": ["whole_trace"]}
    return Table(STEPS, {"step": [0], "start_ns": begin, "end_ns": end, **window})
