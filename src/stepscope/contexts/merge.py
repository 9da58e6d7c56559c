"""Trees of several ranks, files or runs merged into one."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.contexts.combine_rows import fold, stacked_nodes
from stepscope.contexts.sample_stats import SampleStats
from stepscope.contexts.tree import ContextTree


def merge_trees(trees: Sequence[ContextTree]) -> ContextTree:
    """Merge trees: nodes with the same path become one, with the samples of all.

    Args:
        trees: at least one.

    Returns:
        A tree with the metrics of all. It has no `event_node`, as events are of several traces.
    """
    if len(trees) == 1:
        return trees[0]
    folded = fold(stacked_nodes(trees))
    names = dict.fromkeys(name for tree in trees for name in tree.metrics)
    return ContextTree(
        nodes=folded.nodes,
        metrics=folded.metrics({name: _joined(trees, name) for name in names}),
        known={name: metric for tree in trees for name, metric in tree.known.items()},
        source=" + ".join(dict.fromkeys(tree.source for tree in trees)),
        notes=tuple(note for tree in trees for note in tree.notes),
    )


def _joined(trees: Sequence[ContextTree], name: str) -> SampleStats:
    return SampleStats.joined(
        [tree.metrics.get(name) or SampleStats.empty(len(tree)) for tree in trees]
    )
