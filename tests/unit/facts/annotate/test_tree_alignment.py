"""Generated networks matched with trees that differ from them: mismatches stay local."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from tiers import family

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

Node = dict[str, Any]
OPERATORS = {
    "Conv2d": "conv2d",
    "BatchNorm2d": "batch_norm",
    "ReLU": "relu_",
    "Linear": "linear",
    "LayerNorm": "layer_norm",
    "GELU": "gelu",
    "MaxPool2d": "max_pool2d",
}
BLOCKS = (
    ("conv1:Conv2d", "bn1:BatchNorm2d", "relu:ReLU", "conv2:Conv2d", "bn2:BatchNorm2d"),
    ("norm:LayerNorm", "fc1:Linear", "act:GELU", "fc2:Linear"),
    ("pool:MaxPool2d", "conv:Conv2d", "norm:LayerNorm", "act:GELU"),
)


def network(chance: random.Random) -> Node:
    """A network of blocks of up to three kinds."""
    kinds = [chance.choice(BLOCKS) for _ in range(3)]
    blocks = [_block(str(number), kinds[number * 3 // 24]) for number in range(24)]
    return {"name": "", "class": "Net", "children": blocks}


def _block(name: str, leaves: tuple[str, ...]) -> Node:
    pairs = (leaf.split(":") for leaf in leaves)
    children = [{"name": leaf, "class": kind, "children": []} for leaf, kind in pairs]
    return {"name": name, "class": "Block", "children": children}


def changed(tree: Node, way: str, share: float, chance: random.Random) -> Node:
    tree = copy.deepcopy(tree)
    places = [(block, leaf) for block in tree["children"] for leaf in block["children"]]
    for block, leaf in chance.sample(places, max(1, round(share * len(places)))):
        children = block["children"]
        place = next(number for number, child in enumerate(children) if child is leaf)
        if way == "remove":
            del children[place]
        elif way == "rename":
            leaf["class"] = f"My{leaf['class']}"
        elif way == "duplicate":
            children.insert(place + 1, {**leaf, "name": f"{leaf['name']}_2"})
        else:
            children.insert(chance.randrange(len(children)), children.pop(place))
    return tree


@pytest.mark.parametrize("seeds", family([range(6), range(6, 20)], 1), ids=str)
@pytest.mark.parametrize("way", ["remove", "rename", "duplicate", "reorder"])
def test_generated_networks_with_other_trees(way: str, seeds: range) -> None:
    right = total = 0
    for seed in seeds:
        chance = random.Random(seed)
        tree = network(chance)
        lines, truth, clock = [], [], 2
        for block in tree["children"]:
            for leaf in block["children"]:
                operator = f"aten::{OPERATORS[leaf['class']]}"
                lines.append(f"main | {clock} {clock + 1} | {operator} | n={clock}")
                truth.append(f"{block['name']}.{leaf['name']}")
                clock += 2
        lines.append(f"main | 0 {clock} | ProfilerStep#1")
        trace = annotate(
            drawn_trace("\n".join(lines)), changed(tree, way, chance.choice((0.01, 0.1)), chance)
        )
        paths = trace["modules"].text("path")
        known = set(paths)
        found = [
            module
            for name, module in zip(trace.events.text("name"), trace.events["module"], strict=True)
            if (name or "").startswith("aten::")
        ]
        for path, module in zip(truth, found, strict=True):
            if path in known:
                total += 1
                got = paths[module] if module >= 0 else ""
                right += got in (path, path.rpartition(".")[0])
    assert right / total >= 0.95, right / total
