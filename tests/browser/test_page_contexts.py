"""A capture of contexts alone in a browser: no step and no timeline, a flame graph and source."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Workbench
from conftest import single_file_of
from served_page import serving
from violations import violations

_SOURCE = "import torch\n\ndef step():\n    return linear(x)\n\nstep()\n"
_MANIFEST = {
    "format": "stepscope capture",
    "version": 1,
    "outcome": "interrupted",
    "contains": ["contexts"],
    "message": "somebody pressed Ctrl-C",
    "framework": "pytorch",
    "framework_version": "2.13.0",
}

_STEPS = [
    {"ph": "X", "name": name, "cat": kind, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
    for name, kind, ts, dur in (
        ("ProfilerStep#1", "user_annotation", 0, 90),
        ("aten::mm", "cpu_op", 1, 50),
        ("ProfilerStep#2", "user_annotation", 100, 90),
        ("aten::mm", "cpu_op", 101, 70),
    )
]


def _contexts(file: str, operator: str = "aten::linear") -> dict[str, object]:
    strings = ["", "main", "<module>", "step", file, operator, "AddmmBackward0"]
    return {
        "format": "stepscope contexts",
        "version": 1,
        "strings": strings,
        "kinds": ["root", "thread", "python", "operator"],
        "nodes": {
            "parent": [-1, 0, 1, 2, 3, 4],
            "kind": [0, 1, 2, 2, 3, 3],
            "relation": [0, 0, 0, 0, 0, 1],
            "name": [0, 1, 2, 3, 5, 6],
            "file": [0, 0, 4, 4, 0, 0],
            "line": [0, 0, 6, 4, 0, 0],
            "class": [0] * 6,
        },
        "metrics": {
            "cpu_ns": {
                "unit": "ns",
                "nesting": "inclusive",
                "meaning": "time on the CPU thread",
                "node": [4, 5],
                "count": [20, 20],
                "sum": [30_000_000, 12_000_000],
                "min": [1_000_000, 500_000],
                "max": [2_000_000, 700_000],
                "squares": [0, 0],
            }
        },
        "elapsed_ns": 50_000_000,
    }


def _write(capture: Path, contexts: dict[str, object]) -> None:
    with zipfile.ZipFile(capture, "w") as archive:
        archive.writestr("manifest.json", json.dumps(_MANIFEST))
        archive.writestr("contexts.json", json.dumps(contexts))


@pytest.fixture(scope="module")
def contexts_url(home: Path) -> Iterator[str]:
    source = home / "train_contexts.py"
    source.write_text(_SOURCE)
    capture = home / "contexts.stepscope"
    _write(capture, _contexts(str(source)))
    trace = home / "steps.json"
    trace.write_text(json.dumps(_STEPS))
    with serving(home, str(capture), str(trace)) as url:
        yield url


@pytest.fixture
def page(workbench: Workbench, contexts_url: str) -> Workbench:
    """The page, without an error in its console: the fixture `workbench` sees to that."""
    workbench.open(contexts_url, shown=".flame-frame canvas")
    return workbench


def test_it_is_a_flame_graph_and_says_why_there_is_no_timeline(page: Workbench) -> None:
    assert "there is no timeline" in page.page.locator(".alone-line").inner_text()
    assert [tab.inner_text() for tab in page.page.get_by_role("tab").all()] == [
        "Flame graph",
        "Source",
        "Findings",
        "SQL",
    ]
    assert "42.0\u202fms" in page.page.locator(".flame-tools [role=status]").inner_text()
    assert "somebody pressed Ctrl-C" in page.page.locator(".warnings").inner_text()
    page.picture("contexts_flame")


def test_a_box_leads_to_its_line_and_the_line_to_its_boxes(page: Workbench) -> None:
    page.page.locator(".flame-room").click(position={"x": 60, "y": 3 * 19 + 9})
    page.page.locator(".flame-chosen .chip", has_text="train_contexts.py:4").click()
    marked = page.page.locator('tr.marked[data-line="4"]')
    marked.wait_for()
    assert marked.locator("td").first.inner_text() == "30.0\u202fms"
    assert "of the whole recording" in page.page.locator(".pane-tools").inner_text()
    page.picture("contexts_source")
    page.page.locator('tr[data-line="6"]').click()
    found = page.page.locator(".flame-tools [role=status]", has_text="1 box")
    found.wait_for()
    assert page.said["find"] == "train_contexts.py:6"


def test_boxes_are_walked_by_keys(page: Workbench) -> None:
    page.page.locator(".flame-frame").focus()
    for _ in range(3):
        page.page.keyboard.press("ArrowDown")
    page.page.locator(".flame-chosen strong", has_text="step train_contexts.py:4").wait_for()
    page.page.keyboard.press("Enter")
    page.page.locator(".flame-path button", has_text="step train_contexts.py:4").wait_for()
    page.page.keyboard.press("Escape")
    page.page.locator(".flame-path button", has_text="step train").wait_for(state="detached")


def test_the_keys_count_the_tabs_that_are_shown(page: Workbench) -> None:
    for key, pane in (("2", "findings"), ("3", "sql"), ("1", "flame")):
        page.page.keyboard.press(key)
        page.page.locator(f'.pane[data-pane="{pane}"]').wait_for()
    page.page.keyboard.press("?")
    keys = page.page.locator(".keys > div").all_inner_texts()
    assert [" ".join(one.split()) for one in keys[-3:]] == ["1 Flame graph", "2 Findings", "3 SQL"]
    page.page.keyboard.press("Escape")


def test_from_a_trace_with_steps_to_one_without_and_back(page: Workbench) -> None:
    """Nothing is asked of one by the rank and the step of the other: that would be refused."""
    page.page.get_by_label("Trace", exact=True).select_option("steps")
    page.page.locator(".level canvas").first.wait_for()
    page.pane("overview")
    page.page.locator(".verdict").wait_for()
    page.page.get_by_label("Trace", exact=True).select_option("contexts")
    page.page.locator(".alone-line").wait_for()
    page.page.locator(".flame-frame canvas").first.wait_for()
    page.page.get_by_label("Trace", exact=True).select_option("steps")
    page.page.locator(".level canvas").first.wait_for()
    page.settle()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_panes_without_a_timeline_are_accessible(page: Workbench, theme: str) -> None:
    page.in_theme(theme)
    for tab in page.page.get_by_role("tab").all():
        name = tab.get_attribute("id") or ""
        page.pane(name[4:])
        assert violations(page.page) == [], name


@pytest.fixture(scope="module")
def contexts_file(home: Path) -> Path:
    """The single file of a run that mostly sorts."""
    source = home / "train_sorting.py"
    source.write_text(_SOURCE)
    capture = home / "sorting.stepscope"
    _write(capture, _contexts(str(source), "aten::sort"))
    return single_file_of(capture, home)


@pytest.mark.parametrize("width", [390, 1440])
def test_its_first_finding_is_at_the_top_and_leads_to_its_line(
    workbench: Workbench, home: Path, contexts_file: Path, width: int
) -> None:
    workbench.resize(width, 844)
    with serving(home, str(contexts_file.with_suffix(".stepscope"))) as url:
        workbench.open(url, shown=".flame-frame canvas")
        first = workbench.page.locator(".headline .first-finding")
        first.locator("b").wait_for(state="visible" if width > 900 else "attached")
        assert workbench.ask("findings")["findings"][0]["what"].partition(". ")[0] in first.inner_text()
        assert first.bounding_box()["y"] < workbench.page.locator(".dock").bounding_box()["y"]
        workbench.click(".headline-actions button")
        workbench.page.locator('tr.marked[data-line="4"]').wait_for()
        workbench.page.goto("about:blank")  # nobody asks a server that is gone


def test_the_single_file_shows_flame_graph_findings_and_source(
    workbench: Workbench, contexts_file: Path
) -> None:
    workbench.context.set_offline(True)
    page = workbench.page
    page.goto(contexts_file.as_uri())
    page.locator(".flame-frame canvas").first.wait_for()
    assert "there is no timeline" in page.locator(".alone-line").inner_text()
    page.locator(".flame-tools [role=status]", has_text="42.0").wait_for()
    page.get_by_label("Bottom up").check()
    workbench.until("location.hash.includes('up=1')")
    page.locator(".flame-frame canvas").first.wait_for()
    workbench.pane("findings")
    page.locator('.finding[data-rule="hotspot"] .finding-head').click()
    page.locator('tr.marked[data-line="4"]').wait_for()
    assert "linear(x)" in page.locator('tr.marked[data-line="4"]').inner_text()
    assert page.locator(".foot").count() == 0
