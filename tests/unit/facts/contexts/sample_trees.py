"""Trees for tests: drawn by hand, or random."""

from __future__ import annotations

from inspect import cleandoc

import numpy as np
from oracles.context_tree import checked

from stepscope.facts.contexts.metrics import SampleStats
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.schema import CONTEXTS
from stepscope.trace.table import Table, Text


def drawn_tree(text: str) -> ContextTree:
    """A tree from lines `name samples…`, indented by two spaces per level; samples are cpu_ns."""
    parents: list[int] = []
    names: list[str] = []
    samples: list[list[int]] = []
    open_: list[int] = []
    for line in cleandoc(text).splitlines():
        words = line.split()
        level = (len(line) - len(line.lstrip())) // 2
        del open_[level:]
        parents.append(open_[-1] if open_ else -1)
        open_.append(len(names))
        names.append(words[0])
        samples.append([int(word) for word in words[1:]])
    node = np.repeat(np.arange(len(names)), [len(one) for one in samples])
    values = np.array([value for one in samples for value in one])
    return checked(tree_of(parents, names, {"cpu_ns": SampleStats.of(node, values, len(names))}))


def tree_of(parents: list[int], names: list[str], metrics: dict[str, SampleStats]) -> ContextTree:
    kinds = ["root", *["kernel" if name.startswith("k") else "operator" for name in names[1:]]]
    nodes = Table(
        CONTEXTS, {"parent": parents, "kind": kinds, "via": Text.of(["call"] * len(names)), "name": names}
    )
    return ContextTree(nodes, metrics)


def grown_tree(seed: int, size: int = 60) -> ContextTree:
    """A random tree in preorder, siblings distinct, with random samples."""
    random = np.random.default_rng(seed)
    parents, names, path = [-1], ["all"], [0]
    taken: set[tuple[int, str]] = set()
    while len(parents) < size:
        path = path[: int(random.integers(1, len(path) + 1))]
        name = "abcdefgk"[int(random.integers(8))]
        while (path[-1], name) in taken:
            name += "x"
        taken.add((path[-1], name))
        parents.append(path[-1])
        names.append(name)
        path.append(len(parents) - 1)
    node = random.integers(1, size, 3 * size)
    values = random.integers(1, 1000, 3 * size)
    metrics = {
        "cpu_ns": SampleStats.of(node, values, size),
        "device_ns": SampleStats.of(node[::2], values[::2], size),
    }
    return checked(tree_of(parents, names, metrics))


def lines(tree: ContextTree, metric: str = "cpu_ns") -> list[str]:
    """Lines `name exclusive inclusive`, indented."""
    own, whole = tree.own(metric), tree.inclusive(metric)
    return [
        f"{'  ' * int(tree.depth[node])}{tree.label(node)} {own.sum[node]:g} {whole.sum[node]:g}"
        for node in range(len(tree))
    ]
