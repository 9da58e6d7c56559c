"""A tree as folded stacks: one line per stack, its frames joined by semicolons, then a number.

Source: Brendan Gregg's FlameGraph, stackcollapse.pl and flamegraph.pl.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.contexts.node_values import measure
from stepscope.contexts.tree import ContextTree


def to_folded(tree: ContextTree, by: str) -> Iterator[str]:
    """The lines of a file of folded stacks.

    Args:
        tree: any tree.
        by: a measure, as `measure` takes it; its exclusive values, rounded to integers.

    Returns:
        Lines without line ends. Nodes without an exclusive value have no line.
    """
    value = np.rint(measure(tree, by).own).astype(np.int64)
    stacks = [""]
    for node, above in enumerate(tree.parent.tolist()):
        if node:
            stacks.append(f"{stacks[above]};{_frame(tree, node)}" if above else _frame(tree, node))
        if value[node] > 0:
            yield f"{stacks[node] or tree.label(0)} {value[node]}"


def _frame(tree: ContextTree, node: int) -> str:
    """A node's name and its location in brackets; separators of frames and lines are replaced."""
    file, line = tree.nodes.text("file")[node], int(tree.nodes["line"][node])
    place = f" ({file}{f':{line}' if line >= 0 else ''})" if file else ""
    return " ".join(f"{tree.label(node)}{place}".replace(";", ",").split()) or "(unnamed)"
