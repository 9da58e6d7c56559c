"""The flame graph in a browser: measures, zoom, search, upside down, comparison, source lines."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Workbench

ROW_PX = 19
SEARCH = '[aria-label="Search names in the flame graph"]'


@pytest.fixture
def resnet(workbench: Workbench, resnet_url: str) -> Workbench:
    return shown(workbench, resnet_url)


@pytest.fixture
def ddp(workbench: Workbench, several_url: str) -> Workbench:
    return shown(workbench, several_url)


def shown(workbench: Workbench, url: str) -> Workbench:
    workbench.open(url)
    workbench.pane("flame")
    workbench.page.locator(".flame-frame canvas").first.wait_for()
    return workbench


def boxes(workbench: Workbench, query: str = "") -> list[dict[str, Any]]:
    """The boxes that the server tells, each with its name and where it lies, as shares."""
    rank = "rank=0" + (f"&{query}" if query else "")
    answer = workbench.ask(f"contexts?{rank}")
    columns, strings = answer["boxes"], answer["strings"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    reach: dict[int, float] = {}
    for number, row in enumerate(rows):
        above = rows[row["parent"]] if row["parent"] >= 0 else None
        width = row["value"] / (rows[0]["value"] or 1)
        row["name"] = strings[row["name"]]
        row["depth"] = above["depth"] + 1 if above else 0
        row["left"] = reach.get(row["parent"], above["left"]) if above else 0.0
        row["right"] = row["left"] + width
        reach[row["parent"]] = row["right"]
        reach[number] = row["left"]
    return rows


def click_box(workbench: Workbench, box: dict[str, Any]) -> None:
    room = workbench.page.locator(".flame-room")
    frame = room.bounding_box()
    x = (box["left"] + box["right"]) / 2 * frame["width"]
    room.click(position={"x": x, "y": box["depth"] * ROW_PX + ROW_PX / 2})


def chosen(workbench: Workbench) -> str:
    return workbench.page.locator(".flame-chosen").inner_text()


def status(workbench: Workbench) -> str:
    return workbench.page.locator(".flame-tools [role=status]").inner_text()


def test_all_time_is_in_the_first_box(resnet: Workbench) -> None:
    facts = resnet.ask("contexts?rank=0")
    assert facts["by"] == "device"
    assert "604\u202fms" in status(resnet)
    assert "100%" in chosen(resnet)
    assert resnet.page.locator(".flame-frame").get_attribute("data-boxes") == str(len(facts["boxes"]["node"]))
    resnet.picture("flame_light")


def test_a_click_zooms_to_a_box_and_the_path_leads_back(resnet: Workbench) -> None:
    box = next(row for row in boxes(resnet) if row["name"] == "layer3")
    click_box(resnet, box)
    path = resnet.page.locator(".flame-path button")
    path.nth(1).wait_for()
    assert path.last.inner_text() == "layer3"
    assert chosen(resnet).startswith("layer3")
    path.first.click()
    resnet.page.locator(".flame-path").wait_for(state="detached")


def test_another_measure(resnet: Workbench) -> None:
    resnet.page.get_by_label("Measure").select_option("calls")
    total = boxes(resnet, "by=calls")[0]["value"]
    resnet.until(f"document.querySelector('.flame-chosen').innerText.includes('calls {total:,}')")


def test_upside_down_each_kernel_is_once(resnet: Workbench) -> None:
    resnet.page.get_by_label("Bottom up").check()
    rows = [row for row in boxes(resnet, "up=1") if row["depth"] == 1]
    resnet.until(f"document.querySelector('.flame-frame').dataset.boxes ==='{len(boxes(resnet, 'up=1'))}'")
    times = sorted(6 * kernel["total_ms"] * 1e6 for kernel in resnet.ask("kernels")["rows"])
    assert sorted(row["value"] for row in rows) == pytest.approx(times)  # over six steps and all contexts
    click_box(resnet, rows[0])
    resnet.until("!!document.querySelector('.flame-path')")
    assert chosen(resnet).startswith(rows[0]["name"])


def test_a_search_marks_boxes_and_tells_their_share(resnet: Workbench) -> None:
    resnet.page.fill(SEARCH, "batch_norm")
    rows = boxes(resnet)
    found = [row for row in rows if "batch_norm" in row["name"].lower()]
    resnet.until(f"document.querySelector('.flame-tools [role=status]').innerText.startsWith('{len(found)}')")
    assert "16%" in status(resnet)


def test_the_url_holds_measure_direction_search_and_zoom(resnet: Workbench) -> None:
    resnet.page.get_by_label("Measure").select_option("cpu")
    resnet.page.get_by_label("Bottom up").check()
    resnet.page.fill(SEARCH, "conv")
    rows = boxes(resnet, "by=cpu&up=1")
    resnet.until(f"document.querySelector('.flame-frame').dataset.boxes === '{len(rows)}'")
    click_box(resnet, rows[1])
    resnet.page.locator(".flame-path button", has_text=rows[1]["name"]).wait_for()
    sent = resnet.fragment
    resnet.open(resnet.base, f"#{sent}", shown=".flame-path")
    resnet.page.locator(".flame-path button", has_text=rows[1]["name"]).wait_for()
    assert resnet.page.get_by_label("Measure").input_value() == "cpu"
    assert resnet.page.get_by_label("Bottom up").is_checked()
    assert resnet.page.input_value(SEARCH) == "conv"
    # Nodes are of one tree: that of a single step has others, and is shown whole.
    resnet.page.get_by_label("This step only").check()
    resnet.page.locator(".flame-path").wait_for(state="detached")


def test_findings_are_on_their_boxes(resnet: Workbench) -> None:
    told = resnet.ask("context_findings?rank=0&by=cpu")["findings"]
    loader = next(one for one in told if one["rule"] == "input_bound")
    assert loader["nodes"]
    resnet.page.get_by_label("Measure").select_option("cpu")
    resnet.until("document.querySelector('.flame-tools [role=status]').innerText.includes('1,239')")
    box = next(row for row in boxes(resnet, "by=cpu") if row["node"] == loader["nodes"][0])
    click_box(resnet, box)
    resnet.page.locator(".flame-chosen .flame-finding").first.wait_for()
    assert loader["what"] in chosen(resnet)


def test_a_box_leads_to_its_source_line(ddp: Workbench) -> None:
    box = next(row for row in boxes(ddp) if row["name"].startswith("train_step train_ddp.py"))
    click_box(ddp, box)
    ddp.page.locator(".flame-chosen .chip", has_text="train_ddp.py").click()
    ddp.page.locator('.pane[data-pane="source"]').wait_for()
    assert ddp.said["pane"] == "source"


def test_two_traces_in_one_graph_and_part_by_part(ddp: Workbench) -> None:
    ddp.page.get_by_label("Compare with").select_option("dlrm_8rank_v100")
    ddp.page.locator(".flame-tools [role=status]", has_text="before:").wait_for()
    answer = ddp.ask("contexts?rank=0&against=dlrm_8rank_v100")
    assert answer["total_before"] > 0
    assert "change" in chosen(ddp)
    ddp.picture("flame_compared")
    ddp.pane("compare")  # with the same trace
    answer = ddp.ask("diff?rank=0&against=dlrm_8rank_v100")
    ddp.page.get_by_role("button", name="Kernels").click()
    rows = ddp.page.locator(".compare tbody tr")
    kernels = answer["parts"]["kernels"]
    assert rows.count() == len(kernels)
    first = [cell.strip() for cell in rows.first.inner_text().split("\t")]
    assert (first[0], first[5]) == (kernels[0]["short"], kernels[0]["verdict"])
    ddp.page.locator(".compare th button", has_text="before").click()
    slowest = max(kernels, key=lambda row: row["before"]["median_ms"] if row["before"] else 0)
    assert rows.first.inner_text().split("\t")[0].strip() == slowest["short"]
    assert "rank 0 of 8" in ddp.page.locator(".compare").inner_text()
    ddp.picture("compare")


def test_in_the_dark(ddp: Workbench) -> None:
    ddp.in_theme("dark")
    ddp.until("document.documentElement.dataset.theme === 'dark'")
    ddp.picture("flame_dark")
