"""Short labels of nodes."""

from __future__ import annotations

from functools import lru_cache

from stepscope.contexts.tree import ContextTree
from stepscope.kernel_names import short_kernel

_DEVICE = ("kernel", "communication")
_ENGINE = "autograd::engine::evaluate_function: "
_WIDEST = 200
_TOP = "<module>"  # Python's name for code outside functions


def short_label(tree: ContextTree, node: int, width: int = _WIDEST) -> str:
    """The label of a node in a table or a graph, without redundant prefixes.

    Example:
        >>> short_label(tree, 7)  # doctest: +SKIP
        'forward train.py:12'
    """
    kind = tree.nodes.text("kind")[node] or ""
    file, line = tree.nodes.text("file")[node] or "", int(tree.nodes["line"][node])
    name = _short(tree.label(node), kind)
    if kind == "module":
        name = _relative(tree, node)
    if file and kind != "module":
        place = f"{_base(file)}{f':{line}' if line >= 0 else ''}"
        name = place if name == _TOP else f"{name} {place}"
    return name if len(name) <= width else name[: max(width - 1, 1)] + "…"


def _relative(tree: ContextTree, node: int) -> str:
    """A module's path relative to the enclosing module."""
    name, kinds = tree.label(node), tree.nodes.text("kind")
    above = int(tree.parent[node])
    while above >= 0 and kinds[above] != "module":
        above = int(tree.parent[above])
    around = f"{tree.label(above)}." if above >= 0 else ""
    return name[len(around) :] if around and name.startswith(around) else name


@lru_cache(maxsize=1 << 16)
def _short(name: str, kind: str) -> str:
    if kind in _DEVICE:
        return short_kernel(name, _WIDEST)
    name = name.removeprefix(_ENGINE).removeprefix("torch::autograd::")
    if kind == "annotation":
        return name.strip("# ") or name
    return name


def _base(file: str) -> str:
    """The file name without folders; for a package's `__init__.py`, with the package."""
    folder, _, name = file.replace("\\", "/").rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if folder and name == "__init__.py" else name
