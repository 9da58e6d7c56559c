"""The boxes of a flame graph: laid out in one pass, limited in number, with all sums kept."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from oracles.context_tree import checked
from sample_trees import drawn_tree, grown_tree, tree_of

from stepscope.facts.contexts import aligned, bottom_up
from stepscope.facts.contexts.flame import flame
from stepscope.facts.contexts.metrics import SampleStats

TREE = drawn_tree("""
    all
      step 1
        small 2
        linear 4
          mm 30
          add 3
        gelu 5
""")


def drawn_boxes(*tree: Any, **options: Any) -> dict[str, Any]:
    return msgspec.to_builtins(flame(*tree, **options))


def drawn(data: dict[str, Any]) -> list[str]:
    """`name value`, indented; asserts that a page can lay them out in one pass."""
    boxes, depth, lines = data["boxes"], [], []
    assert len({len(column) for column in boxes.values()}) == 1
    for box, parent in enumerate(boxes["parent"]):
        assert parent < box
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        lines.append(f"{'  ' * depth[box]}{data['strings'][boxes['name'][box]]} {boxes['value'][box]}")
    assert json.loads(json.dumps(data)) == data
    return lines


def test_boxes_are_in_preorder_and_the_largest_sibling_is_first() -> None:
    data = drawn_boxes(TREE, "cpu")
    assert drawn(data) == [
        "all 45",
        "  step 45",
        "    linear 37",
        "      mm 30",
        "      add 3",
        "    gelu 5",
        "    small 2",
    ]
    assert (data["total"], data["unit"], data["meaning"]) == (45, "ns", "CPU time")
    assert data["boxes"]["hot"] == [1, 1, 1, 1, 0, 0, 0]
    assert data["boxes"]["own"] == [0, 1, 4, 30, 3, 5, 2]


def test_hidden_nodes_are_one_box_below_their_caller() -> None:
    data = drawn_boxes(TREE, "cpu", most=4)
    assert drawn(data) == [
        "all 45",
        "  step 45",
        "    linear 37",
        "      mm 30",
        "      1 more 3",
        "    2 more 7",
    ]
    assert data["boxes"]["hidden"] == [0, 0, 0, 0, 1, 2]
    assert data["boxes"]["node"][-1] == -1
    assert data["nodes"] == len(TREE)


def test_a_zoomed_node_is_the_first_box_and_the_answer_has_its_path() -> None:
    (linear,) = TREE.search("^linear$")
    data = drawn_boxes(TREE, "cpu", start=int(linear))
    assert drawn(data) == ["linear 37", "  mm 30", "  add 3"]
    assert [one["name"] for one in data["path"]] == ["all", "step", "linear"]
    assert [one["node"] for one in data["path"]] == TREE.path(linear)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 5, 20, 1000])
def test_a_box_is_as_wide_as_its_own_value_and_its_children(seed: int, most: int) -> None:
    for tree in (grown_tree(seed), bottom_up(grown_tree(seed))):
        data = drawn_boxes(tree, "device", most=most)
        drawn(data)
        boxes = {name: np.array(column) for name, column in data["boxes"].items()}
        inside = boxes["own"].astype(float)
        below = boxes["parent"] >= 0
        np.add.at(inside, boxes["parent"][below], boxes["value"][below])
        named = boxes["node"] >= 0
        assert inside[named].tolist() == boxes["value"][named].tolist()
        assert boxes["value"][0] == tree.total("device_ns")
        assert named.sum() <= most
        values = tree.inclusive("device_ns").sum
        assert named.sum() + boxes["hidden"].sum() == (values > 0).sum()


def test_a_comparison_has_the_values_of_both_profiles() -> None:
    after = drawn_tree("""
        all
          step 1
            linear 4
              mm 10
            relu 9
    """)
    laid = aligned(TREE, after)
    data = drawn_boxes(laid[1], "cpu", before=laid[0])
    strings = data["strings"]
    rows = {
        strings[name]: (before, now)
        for name, before, now in zip(
            *(data["boxes"][key] for key in ("name", "before", "value")), strict=True
        )
    }
    assert rows["mm"] == (30, 10)
    assert rows["relu"] == (0, 9)
    assert rows["gelu"] == (5, 0)
    assert (data["total_before"], data["total"]) == (45, 24)
    width = np.array(data["boxes"]["width"])
    inside = np.zeros(len(width))
    np.add.at(inside, data["boxes"]["parent"][1:], width[1:])
    assert (inside <= width).all(), "siblings side by side are no wider than their caller"
    assert (width >= np.maximum(data["boxes"]["before"], data["boxes"]["value"])).all()


@pytest.mark.main
def test_a_hundred_thousand_nodes_keep_their_sums() -> None:
    size = 100_000
    random = np.random.default_rng(0)
    parents = [-1, *np.maximum(np.arange(1, size) - random.integers(1, 30, size - 1), 0).tolist()]
    from stepscope.facts.contexts.call_paths import preorder

    place = preorder(np.array(parents))
    order = np.argsort(place)
    turned = [int(place[parents[row]]) if parents[row] >= 0 else -1 for row in order.tolist()]
    names = [f"n{row}" for row in range(size)]
    own = SampleStats.of(np.arange(size), random.integers(1, 100, size), size)
    tree = checked(tree_of(turned, names, {"cpu_ns": own}))
    data = drawn_boxes(tree, "cpu", most=20_000)
    boxes = data["boxes"]
    assert boxes["value"][0] == own.sum.sum()
    assert sum(boxes["hidden"]) == size - 20_000
