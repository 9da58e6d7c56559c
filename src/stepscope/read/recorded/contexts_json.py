"""Reader of a capture's calling contexts, `contexts.json` (docs/reference/contexts_format.md)."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from stepscope.base.arrays import Codes8
from stepscope.base.typed_data import decode
from stepscope.read.shared import MOST_NOTES, checked, codes_of
from stepscope.trace.concat import stacked
from stepscope.trace.schema import CONTEXT_KINDS, CONTEXT_METRICS, CONTEXTS, VIAS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace, WarningRow

VERSION = 1
_WORK = ("kernel", "memcpy", "memset", "communication")
_OTHERS = "(others)"
_MISSING = "a node refers to a string"
_UNITS = {"1": "", "bytes": "B", "samples": ""}
_DROPPED = {
    "contexts": "calls with a new context after the limit was reached; they are in `(others)`",
    "backward_links": "backward operators whose forward call was no longer known; they are shown "
    "at their call site",
    "samples": "samples dropped because the buffer was full",
    "device_records": "device records without a context",
}


class ContextNodes(Struct):
    """Columns of one length, a row for each context."""

    parent: list[int]
    kind: list[int]
    name: list[int]
    relation: list[int] = []
    file: list[int] = []
    line: list[int] = []
    class_: list[int] = msgspec.field(name="class", default_factory=list)


class ContextMetric(Struct):
    """Sparse columns of one length, a row for each context that has samples."""

    node: list[int]
    count: list[int]
    sum: list[float]
    min: list[float]
    max: list[float]
    squares: list[float]
    nesting: Literal["inclusive", "exclusive"]
    unit: str = ""
    meaning: str = ""


class Contexts(Struct):
    """The form of contexts.json; other keys are allowed."""

    format: Literal["stepscope contexts"]
    version: int
    strings: list[str]
    kinds: list[str]
    nodes: ContextNodes
    metrics: Annotated[dict[str, ContextMetric], msgspec.Meta(max_length=1_000)] = {}  # chosen: 30 are known
    dropped: dict[str, int] = {}
    notes: list[str] = []


def with_recorded_contexts(trace: Trace, text: bytes) -> Trace:
    """The trace of a capture with the tables `contexts` and `context_metrics` of its contexts.json.

    What could not be collected is a warning. Raises IngestError if the text has another form than
    docs/reference/contexts_format.md describes.
    """
    with checked("contexts.json"):
        contexts = decode(text, Contexts)
        _check(contexts)
        trace = trace.with_table(_contexts(contexts)).with_table(_metrics(contexts))
        return trace.with_warnings(_warnings(contexts))


def _check(contexts: Contexts) -> None:
    if contexts.version > VERSION:
        raise ValueError(f"version {contexts.version}; this stepscope reads versions up to {VERSION}")
    nodes = contexts.nodes
    if not nodes.parent or nodes.parent[0] != -1:
        raise ValueError("no root in the first row of `nodes`")
    for name in ("kind", "name", "relation", "file", "line", "class_"):
        column = getattr(nodes, name)
        if len(column) != len(nodes.parent) and (column or name in ("kind", "name")):
            raise ValueError(f"`nodes.{name.rstrip('_')}` and `nodes.parent` differ in length")
    for row, parent in enumerate(nodes.parent[1:], 1):
        if not 0 <= parent < row:
            raise ValueError(f"node {row} has parent {parent}, which does not come before it")
    for name, metric in contexts.metrics.items():
        _check_metric(name, metric, len(nodes.parent))


def _check_metric(name: str, metric: ContextMetric, size: int) -> None:
    lengths = {len(getattr(metric, column)) for column in ("node", "count", "sum", "min", "max", "squares")}
    if len(lengths) != 1:
        raise ValueError(f"columns of `metrics.{name}` differ in length")
    if metric.node and not 0 <= min(metric.node) <= max(metric.node) < size:
        raise ValueError(f"`metrics.{name}` refers to a node that does not exist")


# -- nodes


def _contexts(contexts: Contexts) -> Table:
    nodes, strings = contexts.nodes, contexts.strings
    name = Text(codes_of(nodes.name, strings, _MISSING), strings)
    kind = _kinds(contexts)
    via = np.array(nodes.relation or [0] * len(kind), np.int64) > 0
    launched = np.isin(kind, [CONTEXT_KINDS.index(name) for name in _WORK])
    code = np.where(launched, VIAS.index("launch"), np.where(via, VIAS.index("backward"), 0))
    line = np.array(nodes.line or [0] * len(kind), np.int64)
    columns: dict[str, Any] = {
        "parent": nodes.parent,
        "kind": Text(kind, CONTEXT_KINDS),
        "via": Text(code.astype(np.int8), VIAS),
        "name": name,
        "file": Text(codes_of(nodes.file or [0] * len(kind), strings, _MISSING), strings),
        "line": np.where(line > 0, line, -1),
    }
    return Table(CONTEXTS, columns)


def _kinds(contexts: Contexts) -> Codes8:
    """The kind of each node: for device work by its class, `other` if unknown."""
    codes_of_kinds = {name: code for code, name in enumerate(CONTEXT_KINDS)}
    codes = np.array([codes_of_kinds.get(name, codes_of_kinds["other"]) for name in contexts.kinds], np.int8)
    kind = codes[np.array(contexts.nodes.kind, np.int64)]
    work = np.flatnonzero(kind == codes_of_kinds["kernel"])
    classes = contexts.nodes.class_ or [0] * len(kind)
    kind[work] = [
        codes_of_kinds.get(contexts.strings[classes[row]], codes_of_kinds["kernel"]) for row in work.tolist()
    ]
    names = [contexts.strings[number] for number in contexts.nodes.name]
    kind[np.array([name == _OTHERS for name in names], np.bool_)] = codes_of_kinds["others"]
    return kind


# -- metrics


def _metrics(contexts: Contexts) -> Table:
    tables = [_metric(name, metric) for name, metric in contexts.metrics.items() if metric.node]
    return stacked(tables) if tables else Table(CONTEXT_METRICS, {})


def _metric(name: str, metric: ContextMetric) -> Table:
    count = len(metric.node)
    columns: dict[str, Any] = {
        "context": metric.node,
        "metric": Text.constant(name, count),
        "unit": Text.constant(_UNITS.get(metric.unit, metric.unit), count),
        "meaning": Text.constant(metric.meaning, count),
        "inclusive": [metric.nesting == "inclusive"] * count,
        **{column: getattr(metric, column) for column in ("count", "sum", "min", "max")},
        "squares": _spread(metric),
    }
    return Table(CONTEXT_METRICS, columns)


def _spread(metric: ContextMetric) -> list[float]:
    """Sums of squared distances from the mean, from sums of squares."""
    count = np.array(metric.count, np.float64)
    total, squares = np.array(metric.sum), np.array(metric.squares)
    with np.errstate(over="ignore", invalid="ignore"):  # of damaged files
        spread: list[float] = np.fmax(squares - total * total / np.fmax(count, 1), 0.0).tolist()
    return spread


def _warnings(contexts: Contexts) -> Iterator[WarningRow]:
    for text in contexts.notes[:MOST_NOTES]:
        yield "contexts", text, 1
    for name, count in list(contexts.dropped.items())[:MOST_NOTES]:
        if count:
            yield f"dropped_{name}", _DROPPED.get(name, f"dropped {name}"), count
