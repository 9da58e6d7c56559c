"""Python's import machinery as one frame: a dozen of its own say how it imports, not what."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.fold import folded_tree
from stepscope.contexts.tree import ContextTree
from stepscope.trace.table import Table, Text

IMPORT = "import"
_MACHINERY = re.compile(r"^<frozen (importlib\._bootstrap(_external)?|zipimport)>$")


def fold_imports(tree: ContextTree) -> ContextTree:
    """The tree with each run of frames of the import machinery as one frame `import`.

    What it imports stands below it; finding and loading that is its own time.

    Args:
        tree: any.

    Returns:
        A tree with the same sums.
    """
    machinery = tree.nodes.text("file").where(lambda file: bool(_MACHINERY.match(file)))
    machinery &= tree.nodes.text("kind").mask("python")
    if not machinery.any():
        return tree
    outermost = machinery & ~machinery[tree.parent]
    into = np.where(machinery, tree.nearest(outermost), np.arange(len(tree)))
    return folded_tree(tree, _renamed(tree.nodes, machinery), into)


def _renamed(nodes: Table, changed: NDArray[np.bool_]) -> Table:
    """The nodes with some called `import`, without a place."""
    names, files = nodes.text("name"), nodes.text("file")
    return nodes.with_columns(
        name=Text(np.where(changed, len(names.values), names.codes), [*names.values, IMPORT]),
        file=Text(np.where(changed, len(files.values), files.codes), [*files.values, ""]),
        line=np.where(changed, -1, nodes["line"]),
    )
