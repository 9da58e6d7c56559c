"""A tree as folded stacks: one line a stack, its frames joined by semicolons, then a number.

Source: Brendan Gregg's FlameGraph, stackcollapse.pl and flamegraph.pl.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.contexts.measure import measure
from stepscope.contexts.tree import ContextTree


def to_folded(tree: ContextTree, by: str) -> Iterator[str]:
    """The lines of a file of folded stacks.

    Args:
        tree: any.
        by: a measure, as `measure` takes it; its own values, rounded to whole numbers.

    Returns:
        Lines without their ends. Nodes without a value of their own have none.
    """
    value = np.rint(measure(tree, by).own).astype(np.int64)
    stacks = [""]
    for node, above in enumerate(tree.parent.tolist()):
        if node:
            stacks.append(f"{stacks[above]};{_frame(tree, node)}" if above else _frame(tree, node))
        if value[node] > 0:
            yield f"{stacks[node] or tree.label(0)} {value[node]}"


def _frame(tree: ContextTree, node: int) -> str:
    """A node's name, and its place in brackets; what separates frames and lines is replaced."""
    file, line = tree.nodes.text("file")[node], int(tree.nodes["line"][node])
    place = f" ({file}{f':{line}' if line >= 0 else ''})" if file else ""
    return " ".join(f"{tree.label(node)}{place}".replace(";", ",").split()) or "(unnamed)"
