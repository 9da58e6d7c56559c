"""The tree in a capture, which the recorder aggregated while the program ran."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Ids, Rows
from stepscope.facts.contexts.call_paths import levels
from stepscope.facts.contexts.combine_trees import Folded, fold
from stepscope.facts.contexts.metrics import METRICS, STATISTICS, Metric, SampleStats
from stepscope.facts.contexts.tree import ContextTree, Note
from stepscope.trace.nesting import depths
from stepscope.trace.schema import CONTEXT_METRICS, VIAS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_CALL = VIAS.index("call")
NOT_COLLECTED = "contexts"  # the warnings of a capture about what its collector could not do
WINDOWS = "compiled_operations"  # the warning that says which calls had their operations recorded


def recorded_contexts(trace: Trace) -> ContextTree:
    """The recorded tree of a trace; trees of several ranks are merged.

    A metric that was recorded inclusively (`cpu_ns`) becomes two: `call_ns` with the samples as
    recorded, and `cpu_ns` with the sum minus nested calls. Minimum, maximum and spread of the
    latter are unknown (NaN).
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

    Args:
        parts: each metric with its statistics and the rows of them that are wanted.
        nodes: contexts.id of each of these rows, shape (rows of all parts,).
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
