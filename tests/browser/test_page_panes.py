"""The panes in a browser: one selection for all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from browsing import Workbench
from served_page import serving

_IDLE = {
    "communication": "exposed communication",
    "data": "idle, waiting for data",
    "synchronization": "idle, synchronization",
    "host": "idle, host bound",
    "one_off": "idle, one-off costs",
    "launch": "idle, launch latency",
}

_TINY = Path(__file__).parents[2] / "examples" / "train_tiny.py"


@pytest.fixture
def resnet(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    return workbench


def marked(workbench: Workbench) -> list[str]:
    """The first cells of the marked rows of the pane on screen."""
    rows = workbench.page.locator(".pane tbody tr.marked")
    rows.first.wait_for()
    return [row.split("\t")[0].strip() for row in rows.all_inner_texts()]


def test_a_stage_of_the_overview_opens_in_the_timeline(resnet: Workbench) -> None:
    resnet.click('[data-stage="backward"]')
    resnet.until("location.hash.includes('/t')")
    assert resnet.page.locator(".details h2").inner_text() == "backward"


def test_the_overview_names_the_lines_of_stages_outside_of_training(workbench: Workbench, home: Path) -> None:
    ranges = (
        ("ProfilerStep#1", "user_annotation", 0, 100),
        ("aten::mm", "cpu_op", 2, 48),
        ("stepscope.evaluation: evaluate (/work/train.py:20)", "user_annotation", 50, 30),
        ("aten::addmm", "cpu_op", 52, 20),
        ("stepscope.checkpointing: <module> (/work/train.py:31)", "user_annotation", 82, 13),
    )
    events = [
        {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": 1, "ts": start, "dur": length}
        for name, category, start, length in ranges
    ]
    file = home / "outside.json"
    file.write_text(json.dumps(events))
    with serving(home, str(file)) as url:
        workbench.open(url)
        rows = workbench.page.locator(".stages tbody tr")
        rows.first.wait_for()
        shown = [row.split("\t") for row in rows.all_inner_texts()]
        workbench.page.goto("about:blank")  # nobody asks a server that is gone
    names = [cells[0].strip() for cells in shown]
    assert names[names.index("evaluation") + 1] == "evaluate, train.py:20"
    assert names[names.index("checkpointing") + 1] == "train.py:31"
    assert shown[names.index("train.py:31")][1:3] == ["13.0\u202fµs", "13%"]


def test_a_stage_opens_where_no_step_is_open(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=")
    workbench.page.locator('[data-stage="loss"]').press("ArrowUp")  # to the stage before it
    workbench.page.keyboard.press("Enter")
    assert workbench.page.locator(".details h2").inner_text() == "forward"


def test_the_overview_says_what_bounds_each_stage_and_why_the_device_is_idle(resnet: Workbench) -> None:
    facts = resnet.ask("overview")["facts"]
    rows = resnet.page.locator(".stages tbody tr")
    rows.first.wait_for()
    bounds = {
        row.get_attribute("data-stage"): row.locator(".bound").inner_text().lower() for row in rows.all()
    }
    assert bounds == {one["stage"]: one["bound_by"] for one in facts["stages"]}
    # In the words of `stepscope report`, and all parts together are the whole.
    (device,) = facts["devices"]
    legend = resnet.page.locator(".stacked").first.locator("li").all_inner_texts()
    for cause, ms in device["idle_ms"].items():
        assert any(_IDLE[cause] in one for one in legend) == (ms > 0)
    shares = [float(found[1]) for one in legend if (found := re.search(r"([\d.]+)%$", one))]
    assert sum(shares) == pytest.approx(100, abs=2)
    parts = device["computing_ms"] + sum(device["idle_ms"].values())
    assert parts == pytest.approx(device["window_ms"])


def test_a_step_of_the_strip_and_its_own_figures(resnet: Workbench) -> None:
    box = resnet.page.locator(".step-strip canvas").bounding_box()
    assert box is not None
    resnet.page.mouse.click(box["x"] + box["width"] * 2.5 / 6, box["y"] + 3)  # the third of six steps
    resnet.until("location.hash.includes('path=s7.0')")
    resnet.page.get_by_role("button", name="Previous step").click()
    resnet.until("location.hash.includes('path=s6.0')")
    resnet.page.get_by_text("This step only", exact=True).click()
    resnet.page.locator(".numbers").get_by_text("Step 6").wait_for()
    resnet.page.locator("h1").first.click()
    resnet.page.keyboard.press("]")
    resnet.page.locator(".numbers").get_by_text("Step 7").wait_for()


def test_choosing_a_slice_moves_nothing_of_the_timeline(resnet: Workbench) -> None:
    places = """() => [".axis-head", ".stack", ".track canvas", ".drawer", ".tabs"].map(one =>
        Object.values(document.querySelector(one).getBoundingClientRect().toJSON()).slice(0, 4)
    )"""
    canvas = resnet.page.locator(".track canvas").first
    before = resnet.page.evaluate(places)
    chance, chosen = Random(1), set()
    for _ in range(20):
        canvas.click(position={"x": chance.randrange(1200), "y": chance.choice((8, 22, 40, 55))})
        resnet.settle()
        chosen.add(resnet.chosen)
        after = resnet.page.evaluate(places)
        assert after[:4] == before[:4]
        assert after[4][1] == before[4][1]  # the details stand next to the tabs
    assert len(chosen) > 5


def test_the_axis_is_on_screen_whatever_is_open(resnet: Workbench) -> None:
    for width, height in ((1440, 900), (390, 844)):
        resnet.resize(width, height)
        for tab in resnet.page.get_by_role("tab").all():
            tab.click()
            resnet.until(f"document.documentElement.scrollHeight <= {height}")
            box = resnet.page.locator(".ruler").bounding_box()
            assert box is not None
            assert 0 < box["y"] < height - 200


def test_the_overview_fits_beside_the_details(workbench: Workbench, several_url: str) -> None:
    """Communication, which bounds a stage of this trace, is the longest word of the table."""
    workbench.open(several_url, "#trace=rank0_act_checkpoint")
    workbench.page.keyboard.press("g")
    workbench.page.locator(".details h2").wait_for()
    assert "communication" in workbench.page.locator(".stages").inner_text()
    fits = "[...document.querySelectorAll('.overview > *')].every(one => one.scrollWidth <= one.clientWidth)"
    assert workbench.page.evaluate(fits)


def test_a_module_is_shown_everywhere(resnet: Workbench) -> None:
    resnet.pane("modules")
    resnet.click('[data-key="layer3"]')
    resnet.until("location.hash.includes('subject=module')")
    resnet.until("document.querySelector('.details h2')?.innerText === 'layer3'")
    chosen = next(
        one for one in resnet.operations(resnet.chosen.rpartition("/")[0]) if one["path"] == resnet.chosen
    )
    assert (chosen["kind"], chosen["name"]) == ("module", "layer3")
    module = resnet.said["subject"].partition(":")[2]
    expected = resnet.ask(f"select?module={module}")
    resnet.pane("kernels")
    rows = resnet.ask("kernels")["rows"]
    shown = {row["short"] for row in rows if row["name"] in expected["kernels"]}
    assert set(marked(resnet)) == shown
    assert len(rows) > len(shown)


def test_a_kernel_is_shown_everywhere(resnet: Workbench) -> None:
    resnet.pane("kernels")
    first = max(resnet.ask("kernels")["rows"], key=lambda row: row["total_ms"])
    resnet.page.locator(".pane tbody tr").first.click()
    resnet.page.locator(".subject").wait_for()
    resnet.until(f"document.querySelector('.details h2')?.innerText === {first['short']!r}")
    assert marked(resnet) == [first["short"]]
    details = resnet.ask(f"details?path={resnet.chosen}")
    assert details["full_name"] == first["name"]
    resnet.pane("modules")
    block = details["module"]["path"].split(".")[0]
    resnet.click(f'[data-key="{block}"] .twist')
    while resnet.page.locator("tr.marked").count() == 0:
        resnet.click(f'[aria-expanded=false][data-key^="{block}."] .twist')


def test_an_operation_marks_its_module(resnet: Workbench) -> None:
    resnet.pane("modules")
    path = "s5.0"
    for name in ("forward", "layer2"):
        path = next(one["path"] for one in resnet.operations(path) if one["name"] == name)
        resnet.click_bar(path)
    resnet.until("document.querySelectorAll('.pane tr.marked').length > 0")
    assert resnet.page.locator('tr.marked[data-key="layer2"]').count() == 1


def test_kernels_are_sorted_and_filtered(resnet: Workbench) -> None:
    assert resnet.page.locator("#tab-kernels").inner_text() == "Kernels"
    resnet.pane("kernels")
    rows = resnet.ask("kernels")["rows"]
    shown = resnet.page.locator(".pane tbody tr .name-text")
    shown.first.wait_for()
    assert shown.first.inner_text() == max(rows, key=lambda row: row["total_ms"])["short"]
    resnet.page.get_by_role("button", name="count").click()
    assert shown.first.inner_text() == max(rows, key=lambda row: row["count"])["short"]
    resnet.page.get_by_role("button", name="count").click()
    assert resnet.page.locator("th[aria-sort=ascending]").inner_text().startswith("count")
    resnet.page.get_by_role("searchbox", name="Filter").fill("bn_fw")
    found = sum("bn_fw" in row["name"] for row in rows)
    resnet.until(f"document.querySelectorAll('.pane .name-text').length === {found}")


def test_folded_blocks_tell_their_spread_and_unfold(resnet: Workbench) -> None:
    resnet.pane("modules")
    resnet.click('[data-key="layer3"] .twist')
    fold = resnet.page.locator(".pane table .chip").first
    fold.wait_for()
    assert fold.inner_text().startswith("×5")
    fold.click()
    resnet.page.locator('[data-key="layer3.4"]').wait_for()


def test_the_details_tell_of_all_instances(resnet: Workbench) -> None:
    resnet.click('[data-stage="forward"]')
    resnet.until("location.hash.includes('/t')")
    resnet.page.locator('.details [aria-label="Instances"]').wait_for()
    expected = resnet.ask(f"details?path={resnet.path}")["instances"]
    assert (
        resnet.page.locator('.details [aria-label="Instances"] h3')
        .inner_text()
        .startswith(f"All {expected['count']} of forward")
    )


def test_all_ranks_are_revealed(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#trace=dlrm_8rank_v100&path=")
    ranks = '.level[data-level=""] .row-name[title^="rank"][data-side="cpu"]'
    straggler = workbench.page.locator(ranks)
    assert (straggler.count(), straggler.get_attribute("title")) == (1, "rank 7")  # all others wait for it
    workbench.page.get_by_text("All threads and ranks").click()
    workbench.until(f"document.querySelectorAll({ranks!r}).length === 8")
    workbench.click_bar("s10.5")
    assert workbench.page.get_by_label("Rank", exact=True).input_value() == "5"
    workbench.page.get_by_label("Rank", exact=True).select_option("2")
    workbench.until("location.hash.includes('path=s10.2')")
    streams = '.level[data-level="s10.2"] .row-name[title*="stream"]'
    workbench.until(f"document.querySelectorAll({streams!r}).length > 1")


def test_another_trace_is_picked(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url)
    workbench.page.locator(".verdict").wait_for()
    workbench.page.get_by_label("Trace", exact=True).select_option("tiny")
    workbench.until("/trace=tiny&path=s/.test(location.hash)")
    workbench.page.get_by_text("pytorch 2.").first.wait_for()
    assert workbench.page.title() == "tiny.stepscope · stepscope"


_READING = """
const told = window.fetch;
window.fetch = async (url, ...more) => {
  const answer = await told(url, ...more);
  if (!url.endsWith("/api/traces")) return answer;
  const open = await answer.json();
  open.traces[1].state = "loading";
  return new Response(JSON.stringify(open));
};
"""


def test_who_waits_for_a_trace_can_go_to_another(workbench: Workbench, several_url: str) -> None:
    workbench.context.add_init_script(_READING)
    workbench.open(several_url)
    workbench.page.get_by_label("Trace", exact=True).select_option("dlrm_8rank_v100")
    workbench.page.get_by_role("progressbar").wait_for()
    workbench.page.get_by_label("Open here").get_by_role("button", name="tiny").click()
    workbench.page.locator(".level canvas").first.wait_for()
    assert workbench.trace == "tiny"


def test_activation_checkpointing_is_told_as_recomputed(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#trace=rank0_act_checkpoint")
    workbench.click('[data-stage="backward"]')
    workbench.until("location.hash.includes('/t')")
    workbench.until("document.querySelector('.details h2')?.innerText === 'backward'")
    assert "recomputed" in workbench.details()
    title = workbench.page.locator(".level-title").last
    height = title.evaluate("one => one.offsetHeight")
    through = title.locator(".through")  # wrappers of the backward pass
    assert through.inner_text() == "through backward _tensor.py › backward __init__.py"
    through.evaluate("one => one.textContent = 'through wrappers '.repeat(50)")
    assert title.evaluate("one => one.offsetHeight") == height  # however many, in one line


def test_a_source_line_is_opened_with_its_cost(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#trace=tiny&pane=modules")
    assert workbench.page.locator("#tab-kernels").inner_text() == "Operators"  # it has no device
    workbench.click('[data-key="stem"]')
    workbench.until("document.querySelector('.details h2')?.innerText === 'stem'")
    link = workbench.page.locator('.details [data-action="source"]').first
    line = int(link.inner_text().rpartition(":")[2])
    link.click()
    row = workbench.page.locator(f'.source-table tr.marked[data-line="{line}"]')
    row.wait_for()
    text = row.locator(".code").inner_text()
    assert text == _TINY.read_text("utf-8").splitlines()[line - 1].rstrip()
    assert "self.stem" in text
    cost = row.locator("td").first.inner_text()
    assert re.fullmatch(r"[\d.]+\s(s|ms|µs)", cost)
    cells = workbench.page.locator(".source-table td.number").all_inner_texts()
    shares = [cell for cell in cells if cell.endswith("%")]
    assert shares
    assert not [share for share in shares if share.startswith("100")]  # the step does more
    # And the other way: another line shows what runs there.
    other = workbench.page.locator(".source-table tr[tabindex]:not(.marked)").first
    number = other.get_attribute("data-line")
    other.click()
    assert workbench.said["subject"].startswith(f"line:{number}:")
    workbench.page.locator(".subject").wait_for()


def test_a_path_that_is_not_there_is_one_clear_line(workbench: Workbench, resnet_url: str) -> None:
    workbench.page.goto(resnet_url + "#path=s999.0")
    line = workbench.page.locator(".error-line").first
    line.wait_for()
    assert "s999.0" in line.inner_text()
    workbench.page.locator(".verdict").wait_for()  # and the rest of the page stands
    refused = [one for one in workbench.problems if "404" in one]
    assert workbench.problems == refused
    workbench.problems.clear()


def test_the_theme_is_the_systems_until_it_is_toggled(resnet: Workbench) -> None:
    theme = "document.documentElement.dataset.theme"
    assert resnet.page.evaluate(theme) == "light"
    resnet.in_theme("dark")
    resnet.until(f"{theme} === 'dark'")
    resnet.page.locator("h1").first.click()
    resnet.page.keyboard.press("l")
    assert resnet.page.evaluate(theme) == "light"
    resnet.page.reload()
    resnet.page.locator(".verdict").wait_for()
    assert resnet.page.evaluate(theme) == "light"


def test_the_keys_are_listed(resnet: Workbench) -> None:
    resnet.page.locator("h1").first.click()
    resnet.page.keyboard.press("?")
    resnet.page.get_by_role("dialog", name="Keys").wait_for()
    resnet.page.keyboard.press("t")  # the page is behind it
    assert "asTable" not in resnet.said
    resnet.page.keyboard.press("Escape")
    resnet.page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    tabs = [one.get_attribute("id") or "" for one in resnet.page.locator(".tab .lead").all()]
    resnet.page.keyboard.press(str(tabs.index("tab-modules") + 1))
    resnet.page.locator('.pane[data-pane="modules"]').wait_for()
