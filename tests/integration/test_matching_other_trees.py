"""Real traces matched with trees that differ from the model: mismatches stay local."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_matching_accuracy import FRAMES, tree_of, without

from stepscope.facts.annotate import annotate
from stepscope.read import read
from stepscope.trace.trace import Trace

WAYS = ("remove", "rename", "duplicate", "reorder")
LEAST = 0.95  # of the operators, in their module, its parent or a child of it
Node = dict[str, Any]


def nodes(tree: Node) -> Iterator[tuple[Node, Node | None]]:
    stack: list[tuple[Node, Node | None]] = [(root, None) for root in tree["roots"]]
    while stack:
        node, parent = stack.pop()
        yield node, parent
        stack += [(child, node) for child in node["children"]]


def changed(tree: Node, way: str, share: float, seed: int) -> Node:
    """A copy of a tree with some of its leaves removed, renamed, duplicated or moved."""
    tree, chance = copy.deepcopy(tree), random.Random(seed)
    leaves = [(node, parent) for node, parent in nodes(tree) if parent and not node["children"]]
    for leaf, parent in chance.sample(leaves, max(1, round(share * len(leaves)))):
        children = parent["children"]
        place = next(number for number, child in enumerate(children) if child is leaf)
        if way == "remove":
            del children[place]
        elif way == "rename":
            leaf |= {"class": f"Custom{leaf['class'].rpartition('.')[2]}", "name": "renamed"}
        elif way == "duplicate":
            children.insert(place + 1, {**leaf, "path": f"{leaf['path']}_2", "name": "second"})
        else:
            children.insert(chance.randrange(len(children)), children.pop(place))
    return tree


def share_right(truth: Trace, kept: np.ndarray, found: Trace) -> float:
    """The share of operators in the right branch, of those whose module is in the tree."""
    events = truth.events.take(kept)
    paths = {path: number for number, path in enumerate(found["modules"].text("path"))}
    numbers = [*(paths.get(path, -1) for path in truth["modules"].text("path")), -1]
    true, got = np.array(numbers)[events["module"]], found.events["module"]
    above = np.append(found["modules"]["parent"], -1)
    right = (got == true) | ((got >= 0) & ((above[got] == true) | (above[true] == got)))
    counted = events.text("category").mask("cpu_op") & (true >= 0) & (events["step"] >= 0)
    return float(right[counted].mean())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*FRAMES[:4], FRAMES[5]])
def test_a_tree_that_differs_in_some_leaves(traces, name, way):
    recorded = read(traces / name)
    truth = annotate(recorded)
    frames = recorded.events.text("category").mask("python")
    bare, tree = without(recorded, frames), tree_of(truth)
    for share in (0.01, 0.1):
        found = annotate(bare, changed(tree, way, share, seed=1))
        right = share_right(truth, ~frames, found)
        print(f"| {name} | {way} {share:.0%} | {right:.1%} |")
        assert right >= LEAST
