"""The tables of the page: filter, sort, tree or flat, totals, keys, copy and export."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench

_ROWS = ".pane tbody tr[data-key]"


@pytest.fixture
def modules(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url, "#pane=modules")
    workbench.page.locator('[data-key="layer3"]').wait_for()
    return workbench


@pytest.fixture
def kernels(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url, "#pane=kernels")
    workbench.page.locator(_ROWS).first.wait_for()
    return workbench


def shown(bench: Workbench) -> list[str]:
    """The keys of the rows on screen."""
    bench.settle()
    return bench.page.evaluate(f"[...document.querySelectorAll({_ROWS!r})].map(row => row.dataset.key)")


def exported(bench: Workbench) -> list[dict[str, str]]:
    """The rows of the CSV file that the table saves."""
    with bench.page.expect_download() as saved:
        bench.page.locator('[data-action="csv"]').click()
    text = Path(saved.value.path()).read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def leaves(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The modules without others inside, each copy of a folded block on its own."""
    return [
        leaf
        for node in nodes
        for leaf in (leaves(node["children"]) if node["children"] else node["copies"] or [node])
    ]


def device_ms(node: dict[str, Any]) -> float:
    return node["forward_device_ms"] + node["backward_device_ms"]


def test_leaf_modules_are_ranked_by_time_and_add_up_to_the_model(modules: Workbench) -> None:
    tree = modules.ask("modules")["tree"]
    expected = sorted(leaves(tree), key=device_ms, reverse=True)
    modules.click('[data-view="flat"]')
    rows = exported(modules)
    assert [row["module"] for row in rows[:5]] == [one["path"] for one in expected[:5]]
    assert {one["path"] for one in expected} <= {row["module"] for row in rows}
    total = sum(float(row["total device (ms)"]) for row in rows)
    assert total == pytest.approx(sum(map(device_ms, tree)), rel=1e-3)


def test_modules_have_totals_by_class(modules: Workbench) -> None:
    convolutions = [one for one in leaves(modules.ask("modules")["tree"]) if one["kind"] == "Conv2d"]
    modules.click('[data-view="class"]')
    group = modules.page.locator('tr.group[data-key="Conv2d"]')
    assert f"×{len(convolutions)}" in group.inner_text()
    row = next(row for row in exported(modules) if row["module"] == "Conv2d")
    expected = sum(map(device_ms, convolutions))
    assert float(row["total device (ms)"]) == pytest.approx(expected, rel=1e-3)
    group.click()  # opens to the modules in it
    assert len(shown(modules)) > len(convolutions)


def test_the_tree_opens_closes_and_is_filtered(modules: Workbench) -> None:
    closed = shown(modules)
    modules.page.get_by_role("button", name="Expand all").click()
    assert len(shown(modules)) > 100
    modules.page.get_by_role("button", name="Collapse all").click()
    assert len(shown(modules)) == 1
    box = modules.page.get_by_role("searchbox", name="Filter rows")
    box.fill("downsample")
    assert {"layer1", "layer1.0", "layer1.0.downsample.1"} <= set(shown(modules))
    assert "layer1.1" not in shown(modules)
    box.fill("downsampled")
    assert "No rows with “downsampled”" in modules.page.locator(".pane").inner_text()
    box.fill("")
    assert len(shown(modules)) == 1 < len(closed)


def test_the_tree_is_walked_with_the_keys(modules: Workbench) -> None:
    at = "document.activeElement.dataset.key"
    modules.page.get_by_role("searchbox", name="Filter rows").focus()
    while modules.page.evaluate(f"{at} === undefined"):
        modules.page.keyboard.press("Tab")
    first = modules.page.evaluate(at)
    for key in ("ArrowRight", "End", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowRight"):
        modules.page.keyboard.press(key)
        modules.settle()
    assert modules.page.evaluate(at) == "layer4.0"
    assert modules.page.evaluate("document.activeElement.ariaLevel") == "3"
    modules.page.keyboard.press("ArrowLeft")
    assert modules.page.evaluate(at) == "layer4"
    modules.page.keyboard.press("Enter")
    modules.until("document.querySelector('.details h2')?.innerText === 'layer4'")
    modules.page.keyboard.press("Home")
    assert modules.page.evaluate(at) == first
    # One stop for Tab, however many rows there are.
    assert modules.page.locator('.pane tbody tr[tabindex="0"]').count() == 1


def test_every_column_of_a_tree_sorts_it(modules: Workbench) -> None:
    heading = modules.page.get_by_role("columnheader", name="backward device")
    heading.get_by_role("button").click()
    inside = [row for row in shown(modules) if row.startswith("layer") and "." not in row]
    layers = modules.ask("modules")["tree"][0]["children"]
    times = {one["path"]: one["backward_device_ms"] for one in layers}
    assert inside == sorted(inside, key=lambda path: -times[path])
    assert heading.get_attribute("aria-sort") == "descending"


def test_a_third_click_restores_the_order(modules: Workbench) -> None:
    before = shown(modules)
    heading = modules.page.get_by_role("columnheader", name="calls")
    for order in ("descending", "ascending", None):
        heading.get_by_role("button").click()
        modules.settle()
        assert heading.get_attribute("aria-sort") == order
    assert shown(modules) == before


def test_operations_of_a_level_have_totals_by_name(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=s5.0&asTable=1", shown=".level-tables")
    level = workbench.page.locator('.level-tables [data-level="s5.0"]')
    level.locator('[data-view="name"]').click()
    others = [one for one in workbench.operations("s5.0") if one["name"] == "other"]
    assert len(others) == 2
    group = level.locator('[data-key="other"]')
    assert f"×{len(others)}" in group.inner_text()
    workbench.picture("tables-level")


def test_compared_parts_are_filtered_and_exported(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#pane=compare")
    workbench.page.get_by_role("button", name="Stages").click()
    against = workbench.page.get_by_label("Compare with", exact=True).input_value()
    stages = workbench.ask(f"diff?rank=0&against={against}")["parts"]["stages"]
    rows = exported(workbench)
    assert [row["name"] for row in rows] == [one["name"] for one in stages]
    changes = [float(row["change (ms)"]) for row in rows]
    assert changes == pytest.approx([one["change_ms"] for one in stages])
    workbench.page.get_by_role("searchbox", name="Filter rows").fill("backward")
    assert set(shown(workbench)) == {
        f"{one['name']} {one['side']}" for one in stages if "backward" in one["name"]
    }


def test_kernels_have_totals_by_kind_and_of_what_is_filtered(kernels: Workbench) -> None:
    rows = kernels.ask("kernels")["rows"]
    kernels.click('[data-view="kind"]')
    counted = Counter(row["kind"].replace("_", " ") for row in rows)
    assert set(shown(kernels)) == set(counted)
    row = next(row for row in exported(kernels) if row["name"] == "convolution")
    expected = sum(one["total_ms"] for one in rows if one["kind"] == "convolution")
    assert float(row["total (ms)"]) == pytest.approx(expected)
    kernels.click('[data-view="rows"]')
    kernels.page.get_by_role("searchbox", name="Filter kernels").fill("sgemm volta")
    found = [one for one in rows if "sgemm" in one["name"] and "volta" in one["name"]]
    kernels.until(f"document.querySelectorAll({_ROWS!r}).length === {len(found)}")
    total = kernels.page.locator("tfoot").inner_text()
    assert total.startswith(f"Total of {len(found)} kernels")


def test_rows_are_copied_as_they_are_shown(kernels: Workbench) -> None:
    kernels.context.grant_permissions(["clipboard-read", "clipboard-write"])
    kernels.page.get_by_role("searchbox", name="Filter kernels").fill("bn_fw")
    names = shown(kernels)
    kernels.page.get_by_role("button", name="Copy the rows").click()
    kernels.page.get_by_text("Copied").wait_for()
    text = kernels.page.evaluate("navigator.clipboard.readText()")
    lines = [line.split("\t") for line in text.split("\n")]
    assert lines[0][0] == "name"
    assert [line[0] for line in lines[1:]] == names


def test_of_thousands_of_rows_those_in_sight_are_drawn(workbench: Workbench, bare_url: str) -> None:
    sql = "select i as number from range(9000) t(i)"
    workbench.open(bare_url, "#pane=sql")
    workbench.page.locator(".query textarea").fill(sql)
    workbench.click('[data-action="run"]')
    workbench.page.locator(_ROWS).first.wait_for()
    assert len(shown(workbench)) < 100
    assert workbench.page.locator(".query table").get_attribute("aria-rowcount") == "9000"
    workbench.page.evaluate("document.querySelector('.query .table-frame').scrollTop = 1e6")
    workbench.page.locator('[data-key="8999"]').wait_for()
    assert len(exported(workbench)) == 9000
    assert json.loads(workbench.page.locator('[data-key="8999"] td').inner_text()) == 8999


def test_the_url_holds_filter_and_order_and_the_history_does_not_grow(kernels: Workbench) -> None:
    page = kernels.page
    grown = "history.length"
    places = page.evaluate(grown)
    page.locator(".pane").get_by_role("columnheader", name="count").get_by_role("button").click()
    page.get_by_label("Filter kernels").press_sequentially("sgemm")
    kernels.until("location.hash.includes('t.kernels=-count,,sgemm')")
    assert page.evaluate(grown) == places
    shown = page.locator(".pane tbody tr")
    rows = shown.all_inner_texts()
    shown.first.click()
    kernels.until("location.hash.includes('subject=kernel')")
    page.get_by_label("Filter kernels").fill("")
    kernels.until("!location.hash.includes(',,sgemm')")
    page.go_back()
    kernels.until("location.hash.includes(',,sgemm')")
    assert shown.all_inner_texts() == rows
    page.go_forward()
    kernels.until("!location.hash.includes(',,sgemm')")
    page.go_back()
    kernels.until("location.hash.includes(',,sgemm')")
    page.reload()
    shown.first.wait_for()
    assert shown.all_inner_texts() == rows
    assert page.get_by_label("Filter kernels").input_value() == "sgemm"


def test_a_filtered_tree_opens_to_what_the_url_filters(modules: Workbench) -> None:
    modules.page.get_by_label("Filter rows").fill("downsample")
    modules.until("location.hash.includes('t.modules=,,downsample')")
    rows = modules.page.locator(".pane tbody tr").all_inner_texts()
    other = Workbench(modules.context)
    other.open(modules.base, f"#{modules.fragment}", shown=".pane tbody tr")
    assert other.page.locator(".pane tbody tr").all_inner_texts() == rows
    assert any("downsample" in row for row in rows)
    assert other.problems == []


def test_a_search_for_a_module_leads_to_the_model(kernels: Workbench) -> None:
    """No event of this trace has a module in its name."""
    kernels.page.keyboard.press("/")
    kernels.page.keyboard.type("layer3.0.bn1")
    kernels.page.keyboard.press("Enter")
    kernels.page.get_by_role("button", name="Modules with “layer3.0.bn1”").click()
    kernels.page.locator('[data-key="layer3.0.bn1"]').wait_for()
    assert shown(kernels)[-1] == "layer3.0.bn1"
    assert kernels.page.get_by_role("searchbox", name="Filter").input_value() == "layer3.0.bn1"
