"""Answers about the calling-context tree: the boxes of its flame graph, findings on its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.contexts import (
    MEASURES,
    ContextTree,
    bottom_up,
    build_contexts,
    default_measure,
    difference,
    measure,
    measures,
)
from stepscope.contexts.flame import flame
from stepscope.errors import ServeError
from stepscope.serve.findings import contexts_of_finding, findings, of_finding
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query

_MOST_BOXES = 40_000


def contexts(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The boxes of a flame graph.

    `by` is the measure, `up` 1 for the tree upside down, `start` the node to zoom to, `against` the
    id of another open trace to compare with; `rank` and `step` say of what, `most` how many nodes
    are told at most.
    """
    by, up, against = _by(opened, query), query.flag("up"), query.text("against")
    key = ("flame tree", query.number("rank"), query.number("step"), by if up else "", up, against)
    tree, before = opened.keep(key, lambda: _trees(opened, query, by))
    start = query.number("start") or 0
    if start >= len(tree):
        raise ServeError(f"expected a node below {len(tree)}, found {start}", 404)
    whole = _tree(opened, query)
    most = min(query.number("most") or _MOST_BOXES, _MOST_BOXES)
    return {
        **flame(tree, by, start=start, most=most, before=before),
        "up": up,
        "measures": [_measure(whole, name) for name in measures(whole)],
        "notes": [note.message for note in whole.notes],
    }


def context_findings(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The findings, each with the nodes that show it in the tree that `contexts` tells.

    Nothing is marked while two traces are compared, as nodes are of both then.
    """
    tree, up = _tree(opened, query), query.flag("up")
    told = findings(opened, Query({"rank": query.text("rank")}))["findings"]
    if query.text("against"):
        return {"findings": []}
    shown = _trees(opened, query, _by(opened, query))[0] if up else tree
    return {
        "findings": [
            {**{name: one[name] for name in ("id", "rule", "severity", "what", "advice")},
             "nodes": _nodes(tree, shown, opened, query, one["id"], up)}
            for one in told
        ]
    }  # fmt: skip


def _nodes(
    tree: ContextTree, shown: ContextTree, opened: OpenTrace, query: Query, finding: int, up: bool
) -> list[int]:
    """The nodes that show a finding; upside down the places of these nodes."""
    found = _evidence(tree, opened, Query({"rank": query.text("rank")}), finding)
    if not up:
        return found
    names = {(tree.label(node), tree.nodes.text("kind")[node]) for node in found}
    return [
        int(node)
        for node in shown.children(0)
        if (shown.label(node), shown.nodes.text("kind")[node]) in names
    ]


def _evidence(tree: ContextTree, opened: OpenTrace, query: Query, finding: int) -> list[int]:
    """Of a collected tree, which has no event, the contexts; else the nodes of the events."""
    if tree.event_node is None:
        return contexts_of_finding(opened, query, finding)
    nodes = np.unique(tree.event_node[of_finding(opened, query, finding)[1]])
    found: list[int] = nodes[nodes >= 0].tolist()
    return found


def _tree(opened: OpenTrace, query: Query) -> ContextTree:
    """The tree of a rank, of all steps or of one."""
    rank, step = query.number("rank"), query.number("step")
    if len(opened.trace.metadata.ranks) == 1 and step is None:
        rank = None  # so that a tree recorded by the collector, which knows no rank, is it
    return opened.keep(
        ("contexts", rank, step), lambda: build_contexts(opened.trace, rank=rank, step=step)
    )


def _trees(opened: OpenTrace, query: Query, by: str) -> tuple[ContextTree, ContextTree | None]:
    """The tree to show, and the one of the other trace on the same nodes."""
    tree, against = _tree(opened, query), query.text("against")
    trees = [tree, build_contexts(opened.other(against))] if against else [tree]
    if query.flag("up"):
        trees = [bottom_up(one, measure(one, by).metric) for one in trees]
    if len(trees) == 1:
        return trees[0], None
    laid = difference(trees[1], trees[0])
    return laid.after, laid.before


def _by(opened: OpenTrace, query: Query) -> str:
    tree = _tree(opened, query)
    by = query.text("by") or default_measure(tree)
    measure(tree, by)  # says so where there is none
    return by


def _measure(tree: ContextTree, name: str) -> dict[str, str]:
    usual = MEASURES.get(name)
    metric, statistic, meaning = usual or (name, "sum", tree.metric(name).meaning)
    unit = tree.metric(metric).unit if statistic == "sum" else ""
    return {"name": name, "meaning": meaning, "unit": unit}
