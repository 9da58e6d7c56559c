"""Exports of a tree to other tools, and the columns for JSON."""

import json
import math
import re

import numpy as np
import pytest
from sample_trees import drawn_tree, grown_tree, tree_of

from stepscope.facts.contexts import ContextTree, bottom_up
from stepscope.facts.contexts.exports import to_columns, to_folded, to_speedscope
from stepscope.facts.contexts.metrics import SampleStats
from stepscope.facts.contexts.node_values import plain_numbers, short_label
from stepscope.trace.table import Text

TREE = drawn_tree("""
    all
      step 1
        linear 2
          mm 10 20
        linear2 5
""")


def with_nodes(tree: ContextTree, **columns: object) -> ContextTree:
    from dataclasses import replace

    return replace(tree, nodes=tree.nodes.with_columns(**columns))  # type: ignore[arg-type]


def test_speedscope_gets_a_stack_and_a_weight_per_node_with_exclusive_time() -> None:
    file = to_speedscope(TREE, ["cpu", "calls"], "run")
    names = [frame["name"] for frame in file["shared"]["frames"]]
    cpu, calls = file["profiles"]
    stacks = [";".join(names[frame] for frame in stack) for stack in cpu["samples"]]
    assert dict(zip(stacks, cpu["weights"], strict=True)) == {
        "step": 1,
        "step;linear": 2,
        "step;linear;mm": 30,
        "step;linear2": 5,
    }
    assert (cpu["type"], cpu["unit"], cpu["endValue"]) == ("sampled", "nanoseconds", 38)
    assert (calls["unit"], calls["endValue"]) == ("none", 5)
    assert file["name"] == "run"


@pytest.mark.parametrize("seed", range(4))
def test_speedscope_weights_add_up_to_the_total(seed: int) -> None:
    tree = grown_tree(seed)
    profile, device = to_speedscope(tree, ["cpu", "device"])["profiles"]
    assert sum(profile["weights"]) == tree.total("cpu_ns") == profile["endValue"]
    assert sum(device["weights"]) == tree.total("device_ns")
    assert len(profile["samples"]) == len(profile["weights"])
    frames = len(to_speedscope(tree, ["cpu"])["shared"]["frames"])
    assert all(0 <= frame < frames for stack in profile["samples"] for frame in stack)


# What flamegraph.pl takes a line to be: `^(.*)\s+?(\d+(?:\.\d*)?)$`, its stack split at semicolons.
LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")


def test_folded_stacks_are_one_line_each() -> None:
    assert list(to_folded(TREE, "cpu")) == ["step 1", "step;linear 2", "step;linear;mm 30", "step;linear2 5"]


def test_separators_in_names_are_escaped_in_folded_stacks() -> None:
    names = ["all", "a;b", "two words", "line\nbreak", "ends in 7"]
    tree = with_nodes(TREE, name=Text.of(names), file=Text.of(["", "net.py", "", "", ""]))
    read = [LINE.match(line) for line in to_folded(tree, "cpu")]
    stacks = [(found[1].split(";"), int(found[2])) for found in read if found]
    assert stacks == [
        (["a,b (net.py)"], 1),
        (["a,b (net.py)", "two words"], 2),
        (["a,b (net.py)", "two words", "line break"], 30),
        (["a,b (net.py)", "ends in 7"], 5),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_folded_stacks_add_up_to_the_total(seed: int) -> None:
    tree = grown_tree(seed)
    found = [LINE.match(line) for line in to_folded(tree, "cpu")]
    assert sum(int(one[2]) for one in found if one) == tree.total("cpu_ns")


def test_columns_contain_the_whole_tree() -> None:
    data = json.loads(json.dumps(to_columns(TREE)))
    assert data["nodes"]["name"] == ["all", "step", "linear", "mm", "linear2"]
    assert data["nodes"]["parent"] == [None, 0, 1, 2, 1]
    cpu = data["metrics"]["cpu_ns"]
    assert cpu["unit"] == "ns"
    assert cpu["own"]["sum"] == [0, 1, 2, 30, 5]
    assert cpu["inclusive"]["sum"] == [38, 38, 32, 30, 5]
    assert cpu["own"]["std"][3] == 5
    assert cpu["inclusive"]["count"] == [5, 5, 3, 2, 1]


def test_nan_becomes_null() -> None:
    assert plain_numbers(np.array([2.0, 0.5, math.nan, math.inf])) == [2, 0.5, None, None]


def test_labels_omit_redundant_prefixes() -> None:
    names = ["", "/home/me/train.py step", "layer1", "layer1.0", "void at::native::add<float>(int)"]
    kinds = ["root", "python", "module", "module", "kernel"]
    tree = with_nodes(
        TREE,
        name=Text.of(names),
        kind=Text.of(kinds),
        line=[-1, 7, -1, -1, -1],
        file=Text.of(["", "/home/me/train.py", "", "", ""]),
    )
    assert short_label(tree, 0) == "all"
    assert short_label(tree, 1).endswith("train.py:7")
    assert [short_label(tree, node) for node in (2, 3, 4)] == ["layer1", "0", "add<float>"]
    assert short_label(tree, 4, 5) == "add<…"


def test_the_label_of_a_range_is_what_it_marks() -> None:
    names = [
        "",
        "stepscope.optimizer: opt",
        "Optimizer.step#SGD.step",
        "stepscope.lines: /a.py:3|/b.py:7",
        "## f ##",
    ]
    tree = with_nodes(TREE, name=Text.of(names), file=Text.of([""] * 5))
    assert [short_label(tree, node) for node in range(1, 5)] == ["opt", "SGD.step", "b.py:7", "f"]


def test_bottom_up_trees_can_be_exported() -> None:
    assert list(to_folded(bottom_up(TREE, "cpu_ns"), "cpu")) == [
        "step 1",
        "linear;step 2",
        "mm;linear;step 30",
        "linear2;step 5",
    ]


def test_frames_of_a_stack_beyond_a_thousand_count_for_the_last() -> None:
    """A stack has all frames above it: those of 30,000 calls in each other would take the square."""
    size = 30_000
    samples = SampleStats.of(np.arange(1, size), np.ones(size - 1, np.int64), size)
    tree = tree_of([*range(-1, size - 1)], ["all", *["f"] * (size - 1)], {"cpu_ns": samples})
    stacks = [line.rpartition(" ") for line in to_folded(tree, "cpu")]
    assert max(stack.count(";") for stack, _, _ in stacks) == 999
    (profile,) = to_speedscope(tree, ["cpu"])["profiles"]
    assert max(map(len, profile["samples"])) == 1000
    assert sum(int(weight) for _, _, weight in stacks) == sum(profile["weights"]) == size - 1
