"""A tree without Python's import machinery, as its own tracebacks leave it out."""

from __future__ import annotations

import re

from stepscope.contexts.prune import hide
from stepscope.contexts.tree import ContextTree

_MACHINERY = re.compile(r"^<frozen (importlib\._bootstrap(_external)?|zipimport)>$")


def without_import_machinery(tree: ContextTree) -> ContextTree:
    """The tree in which a line that imports calls what it imports.

    Between the two stand up to a dozen frames of the interpreter's own, which say how it imports.
    What they take themselves, to find a module and to load it, is the importing line's own.

    Args:
        tree: any.

    Returns:
        A tree with the same sums.
    """
    machinery = tree.nodes.text("file").where(lambda file: bool(_MACHINERY.match(file)))
    machinery &= tree.nodes.text("kind").mask("python")
    return hide(tree, machinery) if machinery.any() else tree
