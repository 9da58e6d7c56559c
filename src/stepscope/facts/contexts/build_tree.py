"""The calling-context tree of an annotated trace."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from stepscope.base.arrays import Floats, Ids, Mask, Rows, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.steps.step_table import number_list
from stepscope.facts.contexts.call_paths import Paths, agreed, levels, merge_paths
from stepscope.facts.contexts.event_forest import Forest, build_forest
from stepscope.facts.contexts.frames import LEFT_OUT
from stepscope.facts.contexts.metrics import LAUNCH_METRICS, METRICS, STATISTICS, Metric, SampleStats
from stepscope.facts.contexts.prune import Folded, fold, without_import_machinery, without_unused
from stepscope.facts.contexts.tree import ContextTree, Note
from stepscope.facts.roofline.operator_work import Counted, numbered_calls
from stepscope.trace.nesting import depths
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.schema import CONTEXT_KINDS, CONTEXT_METRICS, CONTEXTS, STAGES, VIAS
from stepscope.trace.sets import Interner
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_FAR = 2**62  # ns: later than any time of a trace


def build_contexts(trace: Trace, *, step: int | None = None, rank: int | None = None) -> ContextTree:
    """The calling-context tree of a trace: one node per call path.

    Calls nest as on their thread. Backward work is below its forward call, device work below the operator
    that launched it, and work without a known launch below a separate node. Compiled work is below the call
    of its function and the frames in which it was traced. All steps and ranks are merged. If the trace
    contains a tree that the recorder aggregated, the result is that tree.

    Args:
        trace: annotated, as `stepscope.open` gives it.
        step: only events of this step.
        rank: only events of this rank.

    Returns:
        The tree, with those metrics of `metrics.METRICS` that the trace has data for.

    Raises:
        TraceError: if the trace has no such step or rank.

    Source: DEEPCONTEXT sections 4.1 (forward and backward) and 4.2 (calling-context tree).
    """
    if trace.metadata.ranks == (rank,):
        rank = None  # all: a tree that the collector recorded knows no rank
    if len(trace["contexts"]) and step is None and rank is None:
        return without_import_machinery(recorded_contexts(trace))
    wanted = _wanted(trace, step, rank)
    forest = build_forest(trace)
    paths, node = _merged(forest)
    tree = ContextTree(
        nodes=_nodes(trace, forest, paths, node),
        metrics=dict(_metrics(trace, forest, node, len(paths.parent), wanted)),
        event_node=np.where(wanted, node[: len(trace.events)], -1),
        source=trace.metadata.source,
        notes=tuple(_notes(trace, forest)),
    )
    return without_import_machinery(without_unused(tree))


def fill_contexts(trace: Trace) -> Trace:
    """The trace with the tree of its events in the tables `contexts` and `context_metrics`."""
    return with_contexts(trace, build_contexts(trace))


def _wanted(trace: Trace, step: int | None, rank: int | None) -> Mask:
    wanted = np.ones(len(trace.events), np.bool_)
    for name, value, known, column in (
        ("step", step, trace["steps"]["step"], trace.events["step"]),
        ("rank", rank, trace["tracks"]["rank"], trace["tracks"]["rank"][trace.events["track"]]),
    ):
        if value is None:
            continue
        if value not in known:
            existing = number_list(sorted(set(known.tolist()))) or "none"
            raise TraceError(f"{trace.metadata.source} has no {name} {value}; it has {existing}")
        wanted &= column == value
    return wanted


def _merged(forest: Forest) -> tuple[Paths, Ids]:
    """The tree of paths, and the node of each element, -1 for elements that are left out."""
    kept = forest.parent != LEFT_OUT
    number = np.append(np.cumsum(kept) - 1, -1)
    paths = merge_paths(number[forest.parent[kept]], (forest.frame * len(VIAS) + forest.via)[kept])
    node = np.full(len(kept), -1, np.int64)
    node[kept] = paths.node
    return paths, node


# -- nodes


def _nodes(trace: Trace, forest: Forest, paths: Paths, node: Ids) -> Table:
    frames, via = np.divmod(paths.key, len(VIAS))
    used, inverse = np.unique(frames, return_inverse=True)
    rows = [forest.frames[number] for number in used.tolist()]
    events, size = trace.events, len(paths.parent)
    event = np.concatenate([np.arange(len(events)), forest.shares.event])
    node = np.concatenate([node[: len(events)], node[forest.shares.element]])
    module, work, stage = (agreed(node, events[name][event], size) for name in ("module", "kind", "stage"))
    columns: dict[str, Any] = {
        "parent": paths.parent,
        "kind": Text.of(row.kind for row in rows).take(inverse).recoded(CONTEXT_KINDS),
        "via": Text(via.astype(np.int8), VIAS),
        "name": Text.of(row.name for row in rows).take(inverse),
        "file": Text.of(row.file for row in rows).take(inverse),
        "line": np.array([row.line for row in rows])[inverse],
        "stage": Text(stage.astype(np.int8), STAGES),
        "module": Text(module, [path or "" for path in trace["modules"].text("path")]),
        "work": Text(work, events.text("kind").values),
    }
    return Table(CONTEXTS, columns)


# -- metrics


def _metrics(
    trace: Trace, forest: Forest, node: Ids, size: int, wanted: Mask
) -> Iterator[tuple[str, SampleStats]]:
    events, launches = trace.events, trace["launches"]
    host, device = np.flatnonzero(forest.host & wanted), np.flatnonzero(forest.device & wanted)
    times = {"cpu_ns": own_shares(events)[host], "call_ns": events["duration_ns"][host]}
    for name, values in times.items():
        yield name, _spread(forest, node, host, values, size)
    if len(device):
        yield "device_ns", _spread(forest, node, device, events["duration_ns"][device], size)
    of_call, of_work = launches["cpu_event"], launches["device_event"]
    kept = wanted[of_work] & (node[of_call] >= 0) & (node[of_work] >= 0)
    if kept.any():
        calls, pieces = np.unique(of_call[kept], return_counts=True)
        yield "launches", SampleStats.of(node[calls], pieces, size)
        yield ("launch_delay_ns", SampleStats.of(node[of_work[kept]], launches["delay_ns"][kept], size))
    kernels = device[events.text("category").mask("kernel")[device]]
    for name, rows, samples in launch_metrics(trace, kernels):
        yield name, SampleStats.of(node[rows], samples, size)
    table = trace["instruction_samples"]
    sampled = wanted[table["event"]]
    if sampled.any():
        yield "stalls", SampleStats.of(node[forest.samples[sampled]], table["count"][sampled], size)
    yield from _memory(trace, forest, node, size, wanted)


def _spread(forest: Forest, node: Ids, rows: Ids, values: Ids, size: int) -> SampleStats:
    """Values of events at their nodes; of fused operations at the nodes of all their origins."""
    element, part = forest.shares.spread(rows, values)
    return SampleStats.of(node[element], part, size)


def _memory(
    trace: Trace, forest: Forest, node: Ids, size: int, wanted: Mask
) -> Iterator[tuple[str, SampleStats]]:
    memory = trace["memory"]
    event = memory["event"]
    at = np.where(event >= 0, node[event], -1)
    at = np.where(at < 0, node[forest.untracked], at)
    partly = trace["tracks"]["rank"][trace.events["track"][~wanted]]  # ranks of which events are left out
    kept = np.where(event >= 0, wanted[event], ~np.isin(memory["rank"], partly))
    for name, sign in (("allocated_bytes", 1), ("freed_bytes", -1)):
        rows = np.flatnonzero(kept & (np.sign(memory["bytes"]) == sign))
        if len(rows):
            yield name, SampleStats.of(at[rows], np.abs(memory["bytes"][rows]), size)


# -- what the tree leaves out


def _notes(trace: Trace, forest: Forest) -> Iterator[Note]:
    events = trace.events
    left_out = ~(forest.host | forest.device)
    on_device = trace["tracks"]["device"][events["track"]] >= 0
    marks = "ranges and synchronizations on device tracks, which are not work"
    groups = (
        ("device_marks", marks, left_out & on_device),
        ("recorder_spans", "spans that the recorder wrote about itself", left_out & ~on_device),
    )
    for code, description, mask in groups:
        if mask.any():
            total = milliseconds(events["duration_ns"][mask].sum())
            yield Note(code, f"{description} ({total} in total), not in the tree", int(mask.sum()))


# -- the time of a thread divided among its calls


def own_shares(events: Table) -> Times:
    """The self time of each event, ns, shape (events,), so that no moment of a thread counts twice.

    Where calls nest cleanly, this is `events.self_ns`. But recorders write calls that overlap without nesting
    (a range that ends while the frame that closes it runs), and calls that exceed their parent by a rounding
    error. An overlap belongs to the call that began first, and a call is clipped to its parent.
    """
    parent = events["parent"].astype(np.int64)
    length = _shares(events, parent)
    inside = np.flatnonzero(parent >= 0)
    return length - np.bincount(parent[inside], length[inside], len(parent)).astype(np.int64)


def _shares(events: Table, parent: Times) -> Times:
    """The time of each event, nested calls included, ns."""
    low = events["start_ns"].copy()
    high = low + events["duration_ns"]
    group = np.where(parent >= 0, parent, len(parent) + events["track"])
    for rows in levels(depths(events["parent"])):
        rows = rows[np.argsort(group[rows], kind="stable")]
        above = parent[rows]
        if above[0] >= 0:
            low[rows] = np.maximum(low[rows], low[above])
            high[rows] = np.minimum(high[rows], high[above])
        low[rows] = np.maximum(low[rows], _ended_before(group[rows], high[rows]))
        high[rows] = np.maximum(low[rows], high[rows])
    return high - low


def _ended_before(group: Times, end: Times) -> Times:
    """The latest end among the earlier rows of each row's group, `-_FAR` for the first row."""
    fresh = np.diff(group, prepend=group[:1] - 1) != 0
    values, rank = np.unique(end, return_inverse=True)
    # Groups are offset to disjoint ranges, so that one running maximum serves all of them.
    offset = (np.cumsum(fresh) - 1) * len(values)
    before: Times = np.roll(values[np.maximum.accumulate(rank + offset) - offset], 1)
    before[fresh] = -_FAR
    return before


_Size = tuple[float, float, float]


class _Launch(msgspec.Struct, frozen=True):
    """The launch configuration in a kernel's arguments, as Kineto names it."""

    grid: _Size | None = None
    block: _Size | None = None
    registers: float | None = msgspec.field(default=None, name="registers per thread")
    shared_bytes: float | None = msgspec.field(default=None, name="shared memory")
    occupancy: float | None = msgspec.field(default=None, name="est. achieved occupancy %")


_DECODER = msgspec.json.Decoder(_Launch)
_CONFIGURED = Counted(_Launch.__struct_encode_fields__, len(_Launch.__struct_fields__))


def launch_metrics(trace: Trace, kernels: Ids) -> Iterator[tuple[str, Ids, Floats]]:
    """The metrics of launches that a trace recorded.

    Yields:
        Name of a metric, the kernels (events.id) that have it, and its values, both of shape (known,).
    """
    launches: Interner[_Launch] = Interner()  # few differ
    source, codes = trace.events["source"][kernels], np.empty(len(kernels), np.int64)
    order, names = np.argsort(source, kind="stable"), np.zeros(len(kernels), np.int64)
    codes[order] = numbered_calls(
        trace.arguments, source[order], names, lambda _, text: launches[_launch(text)], _CONFIGURED
    )
    table = np.array([_values(*astuple(one)) for one in launches], np.float64)
    for name, values in zip(LAUNCH_METRICS, table.reshape(-1, len(LAUNCH_METRICS)).T, strict=True):
        known = np.isfinite(values)[codes]
        if known.any():
            yield name, kernels[known], values[codes[known]]


def _launch(text: bytes) -> _Launch:
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:  # another recorder's arguments, of the same names
        return _Launch()


def _values(grid: _Size | None, block: _Size | None, *others: float | None) -> tuple[float | None, ...]:
    """The values in the order of `LAUNCH_METRICS`."""
    blocks = None if grid is None else prod(grid)
    threads = None if blocks is None or block is None else blocks * prod(block)
    registers, shared_bytes, percent = others
    return blocks, threads, registers, shared_bytes, None if percent is None else percent / 100


# -- the tree in a capture, which the recorder aggregated while the program ran

_CALL = VIAS.index("call")
NOT_COLLECTED = "contexts"  # the warnings of a capture about what its collector could not do
WINDOWS = "compiled_operations"  # the warning that says which calls had their operations recorded


def recorded_contexts(trace: Trace) -> ContextTree:
    """The recorded tree of a trace; trees of several ranks are merged.

    A metric that was recorded inclusively (`cpu_ns`) becomes two: `call_ns` with the samples as recorded, and
    `cpu_ns` with the sum minus nested calls. Minimum, maximum and spread of the latter are unknown (NaN).
    """
    folded = fold(trace["contexts"])
    table = trace["context_metrics"]
    metrics: dict[str, SampleStats] = {}
    known: dict[str, Metric] = {}
    for name in table.text("metric").compact().values:
        rows = table.take(table.text("metric").mask(name))
        about = rows.text("unit")[0] or "", rows.text("meaning")[0] or ""
        own = _stats(rows, folded)
        if rows["inclusive"].any() and name != "call_ns":
            calls = "call_ns" if name == "cpu_ns" else f"{name}, calls included"
            metrics[calls] = own
            known[calls] = Metric(calls, *about, additive=False)
            own = _less_calls(own, folded.nodes)
        metrics[name] = own
        known[name] = METRICS.get(name) or Metric(name, *about)
    notes = tuple(
        Note(row["code"], row["message"], row["count"])
        for row in trace["warnings"].rows()
        if row["code"] in (WINDOWS, NOT_COLLECTED)
    )
    return ContextTree(folded.nodes, metrics, known, source=trace.metadata.source, notes=notes)


def with_contexts(trace: Trace, tree: ContextTree) -> Trace:
    """The trace with a tree in the tables `contexts` and `context_metrics`."""
    parts = [(tree.metric(name), own, np.flatnonzero(own.count)) for name, own in tree.metrics.items()]
    nodes = np.concatenate([np.zeros(0, np.int64), *(rows for _, _, rows in parts)])
    return trace.with_table(tree.nodes).with_table(metric_rows(parts, nodes))


def metric_rows(parts: Sequence[tuple[Metric, SampleStats, Ids | Rows]], nodes: Ids) -> Table:
    """Rows of the table `context_metrics`.

    `parts` has each metric, its statistics and the wanted rows of these, `nodes` the contexts.id of
    each of all wanted rows.
    """
    repeats = [len(rows) for _, _, rows in parts]
    columns: dict[str, NDArray[np.generic] | Text] = {
        "context": nodes,
        "inclusive": np.repeat([not metric.additive for metric, _, _ in parts], repeats),
    }
    for column, name in (("metric", "name"), ("unit", "unit"), ("meaning", "meaning")):
        texts = [getattr(metric, name) for metric, _, _ in parts]
        columns[column] = Text.of(texts).take(np.repeat(np.arange(len(parts)), repeats))
    for name in STATISTICS:
        columns[name] = np.concatenate([getattr(own, name)[rows] for _, own, rows in parts])
    return Table(CONTEXT_METRICS, columns)


def _stats(rows: Table, folded: Folded) -> SampleStats:
    as_recorded = SampleStats(
        rows["count"].astype(np.int64), rows["sum"], rows["min"], rows["max"], rows["squares"]
    )
    return as_recorded.grouped(folded.place[rows["context"]], len(folded.nodes))


def _less_calls(calls: SampleStats, nodes: Table) -> SampleStats:
    """Each call's time without its nested calls."""
    parent, called = nodes["parent"].astype(np.int64), nodes["via"] == _CALL
    spent, inside = calls.sum.copy(), np.zeros(len(nodes))
    for rows in reversed(levels(depths(nodes["parent"]))[1:]):
        spent[rows] = np.where(calls.count[rows] > 0, spent[rows], inside[rows])
        inner = rows[called[rows]]
        np.add.at(inside, parent[inner], spent[inner])
    own = np.where(calls.count > 0, np.maximum(calls.sum - inside, 0.0), 0.0)
    unknown = np.where(calls.count > 0, np.nan, 0.0)
    return SampleStats(calls.count, own, unknown, unknown, unknown)
