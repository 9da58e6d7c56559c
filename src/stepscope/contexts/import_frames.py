"""A tree without Python's import machinery, which Python's tracebacks leave out too."""

from __future__ import annotations

import re

from stepscope.contexts.prune import hide
from stepscope.contexts.tree import ContextTree

_MACHINERY = re.compile(r"^<frozen (importlib\._bootstrap(_external)?|zipimport)>$")


def without_import_machinery(tree: ContextTree) -> ContextTree:
    """The tree in which an importing line calls the imported module directly.

    Up to a dozen frames of the interpreter lie between the two. Their time, for finding and loading
    the module, goes to the importing line.

    Args:
        tree: any tree.

    Returns:
        A tree with the same sums.
    """
    machinery = tree.nodes.text("file").where(lambda file: bool(_MACHINERY.match(file)))
    machinery &= tree.nodes.text("kind").mask("python")
    return hide(tree, machinery) if machinery.any() else tree
