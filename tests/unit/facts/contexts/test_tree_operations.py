"""Inverting, hiding, comparing: sums are kept, shapes are as documented."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles.context_tree import checked
from sample_trees import drawn_tree, grown_tree, lines

import stepscope
from stepscope.base.arrays import Floats
from stepscope.errors import TraceError
from stepscope.facts import contexts
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import aligned, bottom_up, focus, hide, hot_path, hotspots, measure
from stepscope.facts.contexts.tree import ContextTree
from stepscope.testing import drawn_trace

TREE = drawn_tree("""
    all
      step 1
        linear 2
          mm 10 20
            k1 100
          add 3
        gelu 4
          mm 5
            k1 7
            k2 6
""")
SEEDS = range(8)


def test_the_guide_names_functions_that_exist_and_its_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs/guide/contexts_tree.md").read_text("utf-8")
    named = re.findall(r"`(\w+)\(tree|`(\w+)\(before", page.partition("## Operations")[2])
    assert len(named) >= 7
    assert [name for name in map("".join, named) if not callable(getattr(contexts, name, None))] == []
    trace = annotate(
        drawn_trace("""
        main     | 0 100 | ProfilerStep#1
        main     | 10 20 | aten::index      | seq=5
        main     | 12 14 | cudaLaunchKernel | corr=1
        main     | 30 60 | autograd::engine::evaluate_function: IndexBackward0 | seq=5 fwd=1
        stream 7 | 15 25 | index_kernel     | corr=1
    """)
    )
    monkeypatch.setattr(stepscope, "open", lambda path: trace)
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    found: dict[str, object] = {}
    exec(compile(code, "contexts_tree.md", "exec"), found)
    assert len(found["backward"]) == 1  # type: ignore[arg-type]


def test_inclusive_values_count_samples_below_a_node() -> None:
    whole = TREE.inclusive("cpu_ns")
    (linear,) = TREE.search("^linear$")
    assert lines(TREE)[2] == "    linear 2 135"
    assert (whole.count[linear], whole.min[linear], whole.max[linear]) == (5, 2, 100)
    assert whole.std[linear] == pytest.approx(np.std([2, 10, 20, 100, 3]))


def test_bottom_up_has_each_place_once_with_its_callers_below() -> None:
    assert lines(bottom_up(TREE)) == [
        "all 0 158",
        "  step 1 1",
        "  linear 0 2",
        "    step 2 2",
        "  mm 0 35",
        "    linear 0 30",
        "      step 30 30",
        "    gelu 0 5",
        "      step 5 5",
        "  k1 0 107",
        "    mm 0 107",
        "      linear 0 100",
        "        step 100 100",
        "      gelu 0 7",
        "        step 7 7",
        "  add 0 3",
        "    linear 0 3",
        "      step 3 3",
        "  gelu 0 4",
        "    step 4 4",
        "  k2 0 6",
        "    mm 0 6",
        "      gelu 0 6",
        "        step 6 6",
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_bottom_up_totals_equal_a_search_by_hand(seed: int) -> None:
    tree = grown_tree(seed)
    turned = checked(bottom_up(tree))
    whole = turned.inclusive("cpu_ns")
    for place in turned.children(0):
        own = tree.own("cpu_ns").take(tree.search(f"^{turned.label(place)}$"))
        assert whole.sum[place] == own.sum.sum()
        assert whole.count[place] == own.count.sum()
    for node in range(1, len(turned)):
        below = turned.children(node)
        assert whole.sum[node] == whole.sum[below].sum() + turned.own("cpu_ns").sum[node]


def test_bottom_up_by_one_metric_lists_only_places_with_samples() -> None:
    tree = grown_tree(0)
    turned = checked(bottom_up(tree, "device_ns"))
    assert list(turned.metrics) == ["device_ns"]
    assert turned.total("device_ns") == tree.total("device_ns")


def test_calls_and_time_of_hidden_nodes_go_to_their_caller() -> None:
    unwanted = np.zeros(len(TREE), np.bool_)
    unwanted[TREE.search("^(linear|gelu)$")] = True
    assert lines(hide(TREE, unwanted)) == [
        "all 0 158",
        "  step 7 158",
        "    mm 35 148",
        "      k1 107 107",
        "      k2 6 6",
        "    add 3 3",
    ]


def test_a_focus_keeps_ancestors_and_descendants() -> None:
    wanted = np.zeros(len(TREE), np.bool_)
    wanted[TREE.search("^gelu$")] = True
    assert lines(focus(TREE, wanted)) == [
        "all 0 158",
        "  step 1 158",
        "    others 135 135",
        "    gelu 4 22",
        "      mm 5 18",
        "        k1 7 7",
        "        k2 6 6",
    ]


def test_the_hot_path_follows_the_largest_child_while_it_holds_half() -> None:
    assert [TREE.label(node) for node in hot_path(TREE, "cpu")] == ["all", "step", "linear", "mm", "k1"]
    assert [TREE.label(node) for node in hot_path(TREE, "cpu", least=0.95)][-1] == "step"


def test_hotspots_have_a_share_of_the_total_themselves() -> None:
    assert [TREE.label(node) for node in hotspots(TREE, "cpu", 0.15)] == ["k1", "mm"]


def path_names(tree: ContextTree, node: int) -> tuple[str, ...]:
    return tuple(tree.label(one) for one in tree.path(node))


def test_two_trees_are_aligned_path_by_path() -> None:
    after = drawn_tree("""
        all
          step 1
            linear 2
              mm 10
                k9 40
            relu 8
    """)
    laid = aligned(TREE, after)
    names = (path_names(laid[1], node)[-2:] for node in range(len(laid[1])))
    change = dict(zip(names, change_of(laid, "cpu"), strict=True))
    assert change["step", "relu"] == 8
    assert change["mm", "k1"] in (-100, -7)
    assert change["mm", "k9"] == 40
    assert change["step", "linear"] == 52 - 135
    assert change["all",] == after.total("cpu_ns") - TREE.total("cpu_ns")
    for tree in laid:
        checked(tree)


def change_of(laid: list[ContextTree], by: str) -> Floats:
    before, after = (measure(tree, by).inclusive for tree in laid)
    return after - before


def test_a_tree_compared_with_itself_has_no_difference() -> None:
    tree = grown_tree(5)
    laid = aligned(tree, tree)
    assert len(laid[1]) == len(tree)
    assert not change_of(laid, "cpu").any()
    assert not change_of(laid, "device").any()


def test_a_measure_is_a_metric_or_a_count_of_its_samples() -> None:
    assert measure(TREE, "cpu").inclusive[0] == 158
    assert measure(TREE, "calls").inclusive[0] == 10
    assert measure(TREE, "cpu").unit == "ns"
    assert measure(TREE, "calls").unit == ""


def test_an_unavailable_measure_is_refused_with_the_available_ones() -> None:
    with pytest.raises(TraceError, match="the tree has no metric 'stalls'; choose one of cpu, calls"):
        measure(TREE, "stalls")
    with pytest.raises(TraceError, match="nothing was measured in the tree: it holds no calls"):
        measure(replace(TREE, metrics={}, source=""), "cpu")
