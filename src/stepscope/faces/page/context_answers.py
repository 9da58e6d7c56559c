"""Answers about the calling-context tree: the boxes of its flame graph, findings on its nodes."""

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.errors import ServeError
from stepscope.faces.page.finding_answers import Severity, contexts_of_finding, events_of_finding, findings
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.contexts import (
    MEASURES,
    ContextTree,
    aligned,
    bottom_up,
    build_contexts,
    default_measure,
    measure,
    measures,
)
from stepscope.facts.contexts.flame import FlameGraph, flame
from stepscope.trace.trace import Trace

_MAX_BOXES = 40_000  # of a flame graph; chosen: bounds what the page has to draw


class Measure(msgspec.Struct):
    """A metric to show."""

    name: str  # for `by`
    meaning: str


class Flame(FlameGraph, kw_only=True):
    """The boxes of a flame graph."""

    up: bool  # whether each function is shown with its callers below it (bottom-up)
    measures: list[Measure]  # that this tree has
    notes: list[str]  # what the tree leaves out


class NodeFinding(msgspec.Struct):
    """A finding and the nodes that show it."""

    id: int  # as in `findings`
    rule: str
    severity: Severity
    what: str
    advice: str
    nodes: list[int]  # of the tree that `contexts` returns for the same parameters


class ContextFindings(msgspec.Struct):
    """The findings to mark in a flame graph."""

    findings: list[NodeFinding]


def contexts(view: TraceView, query: Query) -> Flame:
    """The boxes of a flame graph; values are totals over the recording, or over one step.

    Query:
        rank: by default all ranks together.
        step: by default the whole recording.
        by: a measure; by default device time, CPU time if there is none.
        up: 1 to show each function with its callers below it.
        start: node to zoom to.
        against: id of another open trace to compare with, by the same rank if it has that, else by all;
            its values are those of as many steps.
        most: number of nodes to return, at most 40,000.
    """
    by, up, against = _by(view, query), query.flag("up"), query.text("against")
    key = ("flame tree", query.number("rank"), query.number("step"), by if up else "", up, against)
    tree, before = view.cached(key, lambda: _trees(view, query, by))
    start = query.number("start") or 0
    if start >= len(tree):
        raise ServeError(f"expected a node below {len(tree)}, found {start}", 404)
    whole = _tree(view, query)
    most = min(query.number("most") or _MAX_BOXES, _MAX_BOXES)
    times = _times(view, query) if against else 1.0
    graph = flame(tree, by, start=start, most=most, before=before, times=times)
    available = [
        Measure(name, MEASURES[name][2] if name in MEASURES else whole.metric(name).meaning)
        for name in measures(whole)
    ]
    notes = [note.message for note in whole.notes]
    return filled(Flame, graph, up=up, measures=available, notes=notes)


def context_findings(view: TraceView, query: Query) -> ContextFindings:
    """The findings, each with the nodes that show it; takes as long as the analyzer.

    Nothing is marked while two traces are compared, since nodes belong to both.

    Query:
        rank, step, by, up, against: as for `contexts`.
    """
    if query.text("against"):
        return ContextFindings([])
    tree, up = _tree(view, query), query.flag("up")
    shown = _trees(view, query, _by(view, query))[0] if up else tree
    answer = ContextFindings([])
    for one in findings(view, query).findings:
        nodes = _nodes(tree, shown, view, query, one.id, up)
        answer.findings.append(NodeFinding(one.id, one.rule, one.severity, one.what, one.advice, nodes))
    return answer


def _nodes(
    tree: ContextTree, shown: ContextTree, view: TraceView, query: Query, finding: int, up: bool
) -> list[int]:
    """The nodes that show a finding; bottom-up the functions of these nodes."""
    evidence = _evidence(tree, view, query, finding)
    if not up:
        return evidence
    names = {(tree.label(node), tree.nodes.text("kind")[node]) for node in evidence}
    return [
        int(node)
        for node in shown.children(0)
        if (shown.label(node), shown.nodes.text("kind")[node]) in names
    ]


def _evidence(tree: ContextTree, view: TraceView, query: Query, finding: int) -> list[int]:
    """The contexts of a collected tree, which has no events; else the nodes of the events."""
    if tree.event_node is None:
        return contexts_of_finding(view, query, finding)
    nodes: Ids = np.unique(tree.event_node[events_of_finding(view, query, finding)[1]])
    return nodes[nodes >= 0].tolist()


def _tree(view: TraceView, query: Query) -> ContextTree:
    return view.contexts(query.number("rank"), query.number("step"))


def _trees(view: TraceView, query: Query, by: str) -> tuple[ContextTree, ContextTree | None]:
    """The tree to show, and the other trace's tree on the same nodes."""
    tree, against = _tree(view, query), query.text("against")
    trees = [tree]
    if against:
        trees.append(build_contexts(view.other(against), rank=_other_rank(view, query)))
    if query.flag("up"):
        trees = [bottom_up(one, measure(one, by).metric) for one in trees]
    if len(trees) == 1:
        return trees[0], None
    before, after = aligned(trees[1], trees[0])
    return after, before


def _other_rank(view: TraceView, query: Query) -> int | None:
    """The same rank of the other trace; None for all that it has."""
    rank, ranks = query.number("rank"), view.other(query.text("against")).metadata.ranks
    return rank if rank in ranks else None


def _times(view: TraceView, query: Query) -> float:
    """Of how many times as many steps as the other tree the tree is; 1 where a side is of a whole run."""
    own = _steps(view.trace, query.number("rank"), query.number("step"))
    other = _steps(view.other(query.text("against")), _other_rank(view, query), None)
    return own / other if own and other else 1.0


def _steps(trace: Trace, rank: int | None, step: int | None) -> int:
    """The steps that a tree is of, those of each rank counted; 0 for a collected one."""
    steps = trace["steps"]
    chosen = (steps["rank"] == rank) | (rank is None)
    return 0 if len(trace["contexts"]) else int((chosen & ((steps["step"] == step) | (step is None))).sum())


def _by(view: TraceView, query: Query) -> str:
    tree = _tree(view, query)
    by = query.text("by") or default_measure(tree)
    measure(tree, by)  # raises an error if there is none
    return by
