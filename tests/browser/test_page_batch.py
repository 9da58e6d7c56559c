"""The page about batch sizes, as `stepscope batch --html` writes it: its rows without a mouse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench
from violations import violations

from stepscope.faces.page.bundle import page_in_one
from stepscope.faces.terminal.batch import DEVICES_ELEMENT, ELEMENT


def _prediction(batch: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "ms": batch + 9.0,
        "ms_range": [batch, batch + 18],
        "throughput": 1000 * batch / (batch + 9),
        "throughput_range": [0, None],
        "bytes": 100 + 10 * batch,
        "memory": {"weights": 100, "activations": 10 * batch},
    }


def _node(
    name: str, ms: float, *children: dict[str, Any], line: int | None = None, held: float | None = None
) -> Any:
    return {
        "name": name,
        "kind": "module" if children else "operator",
        "ms": ms,
        "forward_ms": ms,
        "backward_ms": 0,
        "bytes": held or 10 * ms,
        "self_ms": 0,
        "self_bytes": 0,
        "calls": 1,
        "file": "/p/net.py" if line else None,
        "line": line,
        "children": list(children),
    }


_NET = _node("net", 6, _node("block", 5, _node("aten::conv2d", 4, line=5), line=4), line=3)
_ANSWER = {
    "entry": "train.py",
    "batch": 32,
    "sentence": "batch_size=32",
    "points": [],
    "site": {"path": "/p/train.py", "line": 20, "name": "batch_size", "text": "32"},
    "max_throughput": None,
    "fit_error": None,
    "memory_fit_error": None,
    "too_large": None,
    "capacity": 840,
    "device": {"type": "cpu"},
    "warnings": [],
    "now": _prediction(32),
    "suggestions": [],
    "curve": [_prediction(one) for one in (16, 32, 64)],
    "breakdown": {
        "batch": 32,
        "step_ms": 10,
        "peak_bytes": 420,
        "memory": {},
        "tree": _node("step", 10, _node("overhead", 1, held=240), _NET),
    },
}


def _ranged(value: float) -> dict[str, float]:
    return {"value": value, "low": value / 2, "high": value * 2}


def _device(name: str, rate: float, fits: str, usd: float | None) -> dict[str, Any]:
    instance = {
        "name": "cloudy",
        "provider": "Cloud",
        "region": "any",
        "usd_per_hour": 8.0,
        "count": 8,
        "date": "2030-01-02",
        "source": "an invoice",
    }
    return {
        "name": name,
        "watts": 400,
        "usable_bytes": 4 * 10**10,
        "ranks_problem": None,
        "instance": instance if usd else None,
        "predictions": [
            {
                "batch": batch,
                "extrapolated": False,
                "ms": _ranged(1e3 / rate),
                "fits": fits,
                "throughput": _ranged(rate * batch),
                "bytes": _ranged(10**9),
                "hours": _ranged(0.5),
                "joules": _ranged(3.6),
                "usd": usd and _ranged(usd),
            }
            for batch in (16, 32)
        ],
        "ranks": [
            {
                "ranks": 2,
                "ms": _ranged(5),
                "throughput": _ranged(1.5 * rate),
                "efficiency": 0.75,
                "usd": usd and _ranged(usd),
            }
        ],
    }


_DEVICES = {
    "basis": "operations",
    "sentence": "The step ran on a CPU.",
    "known": 1,
    "samples": 10**6,
    "data_sheets_date": "2030-01-01",
    "bandwidth_gbps": 100,
    "measured": {"batch": 32, "joules": 0.25, "watts": 80, "counter": "RAPL"},
    "devices": [_device("H100", 100, "yes", 12.5), _device("L4", 10, "unsure", None)],
}


def _plain(text: str) -> str:
    """With spaces that may break."""
    return " ".join(text.split())


def _opened(workbench: Workbench, folder: Path, **elements: Any) -> Any:
    data = "".join(
        f'<script type="application/json" id="{name}">{json.dumps(content)}</script>'
        for name, content in elements.items()
    )
    file = folder / "batch.html"
    file.write_text(page_in_one(data, "batch.html"))
    workbench.open(file.as_uri(), shown=".breakdown li")
    return workbench.page


@pytest.fixture
def page(workbench: Workbench, tmp_path: Path) -> Any:
    return _opened(workbench, tmp_path, **{ELEMENT: _ANSWER})


@pytest.fixture
def devices(workbench: Workbench, tmp_path: Path) -> Any:
    page = _opened(workbench, tmp_path, **{ELEMENT: _ANSWER, DEVICES_ELEMENT: _DEVICES})
    page.get_by_role("button", name="Other devices").click()
    return page.get_by_label("Other devices", exact=True)


def test_a_row_that_does_something_is_a_button_in_a_list(page: Any) -> None:
    rows = page.get_by_label("Breakdown").get_by_role("listitem")
    assert rows.count() == 2
    buttons = rows.get_by_role("button")
    assert [_plain(text) for text in buttons.all_inner_texts()] == ["net net.py:3 6.00 ms 60%"]


def test_enter_opens_what_is_inside_a_row(page: Any) -> None:
    page.get_by_role("button", name="net.py:3").press("Enter")
    page.get_by_role("button", name="block").wait_for()
    assert page.get_by_label("Breadcrumbs").locator("strong").inner_text() == "net"


@pytest.mark.parametrize("place", ["net", "step"])  # up one level, and to the top
def test_breadcrumbs_lead_up(page: Any, place: str) -> None:
    for row in ("net.py:3", "net.py:4"):
        page.get_by_role("button", name=row).press("Enter")
    crumbs = page.get_by_label("Breadcrumbs")
    crumbs.get_by_role("button", name=place).click()
    assert crumbs.locator("strong").inner_text() == place


def test_a_part_is_lit_in_time_in_memory_and_in_its_row(page: Any) -> None:
    """The most comes first in each bar: of the time the net, of the memory the overhead."""
    for bar, name in (("time", "net"), ("memory", "overhead")):
        page.locator(f"[data-metric={bar}] > span").first.hover()
        for place in ("[data-metric=time]", "[data-metric=memory]"):
            assert page.locator(f"{place} > .lit").get_attribute("title").startswith(f"{name}: ")
        assert page.locator(".cost.lit").inner_text().startswith(name)
        page.mouse.move(0, 0)
        page.locator(".lit").first.wait_for(state="detached")


def test_the_pointer_may_leave_a_bar_that_it_drags(page: Any) -> None:
    bar = page.get_by_role("slider", name="Throughput")
    box = bar.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.9 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.1 * box["width"], y + 80, steps=3)
    page.get_by_text("16", exact=True).first.wait_for()
    page.mouse.up()
    assert page.locator("output.batch-size").inner_text() == "16"
    memory = page.get_by_role("slider", name="Peak memory")  # it follows, and its kinds
    assert _plain(memory.get_attribute("aria-valuetext")) == "260 B, of 840 B, CPU"
    kinds = page.locator(".memory-legend").first.get_by_role("listitem").all_inner_texts()
    assert [_plain(text) for text in kinds] == ["weights 100 B", "activations 160 B"]


def test_without_a_model_nothing_can_be_dragged(workbench: Workbench, tmp_path: Path) -> None:
    alone = {"batch": 32, "ms": 41.0, "throughput": 780.5, "bytes": 420, "repeats": 3}
    answer = {**_ANSWER, "points": [alone], "now": None, "curve": [], "warnings": ["one size fits"]}
    page = _opened(workbench, tmp_path, **{ELEMENT: answer})
    assert page.get_by_role("slider").count() == 0
    said = _plain(page.locator("main").inner_text())
    for words in ("a step takes 41.0 ms", "sizes are not predicted: 1 size measured", "one size fits"):
        assert words in said


def _cells(table: Any) -> list[list[str]]:
    return [
        [_plain(text) for text in row.locator("th, td").all_inner_texts()]
        for row in table.locator("tbody tr").all()
    ]


def test_the_five_tasks_of_skylines_study(workbench: Workbench, tmp_path: Path) -> None:
    """What takes most time, what most memory, weights or activations, where both are equal, and from
    where more samples gain less (SKYLINE, "Study Design")."""
    curve = [_prediction(one) for one in (8, 10, 16, 32, 64)]
    page = _opened(workbench, tmp_path, **{ELEMENT: {**_ANSWER, "curve": curve}})
    rows, found = page.locator(".breakdown .cost"), []
    for _ in range(3):
        found.append(rows.first.inner_text().split()[0])
        rows.first.press("Enter")
    assert found == ["net", "block", "aten::conv2d"]
    page.get_by_label("Breadcrumbs").get_by_role("button", name="step").click()
    page.get_by_role("button", name="memory").click()
    assert rows.first.inner_text().startswith("overhead")

    def shown() -> tuple[int, int, list[str]]:
        rate = page.get_by_role("slider", name="Throughput").get_attribute("aria-valuetext").split()[0]
        kinds = page.locator(".memory-legend").first.get_by_role("listitem").all_inner_texts()
        size = page.locator("output.batch-size").inner_text()
        return int(size), int(rate), [_plain(one).rpartition("s ")[2] for one in kinds]

    answers = [shown()]
    for _ in range(2):
        page.get_by_role("slider", name="Peak memory").press("ArrowLeft")
        answers.append(shown())
    # Twice the samples from 16 on: 1.22 times as many a second. Of memory, weights and activations.
    assert answers == [
        (32, 780, ["100 B", "320 B"]),
        (16, 640, ["100 B", "160 B"]),
        (10, 526, ["100 B", "100 B"]),
    ]


def test_without_other_devices_there_is_no_tab(page: Any) -> None:
    assert page.get_by_role("button", name="Other devices").count() == 0


def test_the_tab_shows_time_fit_price_and_energy_of_other_devices(devices: Any) -> None:
    assert _cells(devices.locator("table").first) == [
        [
            "H100",
            "10.0 ms",
            "3,200",
            "1,600 to 6,400",
            "1.00 GB of 40.0 GB, fits",
            "$12.5 · 30.0 min",
            "1.00 kWh",
        ],
        [
            "L4",
            "100 ms",
            "320",
            "160 to 640",
            "1.00 GB of 40.0 GB, may fit",
            "no price · 30.0 min",
            "1.00 kWh",
        ],
    ]
    notes = devices.locator(".device-notes").inner_text()
    assert "Cloud cloudy, 8.00 USD/h, 1/8 of it per device, 2030-01-02" in notes
    assert "The step ran on a CPU." in notes
    assert "Measured here (RAPL), batch size 32: 0.25 J per sample at 80.0 W." in notes
    assert "L4: 400 W; no price known" in notes


def test_another_batch_size_on_other_devices(devices: Any) -> None:
    sizes = devices.get_by_label("Batch size on other devices").get_by_role("button")
    assert sizes.all_inner_texts() == ["16", "32"]
    assert sizes.nth(1).get_attribute("aria-pressed") == "true"  # the batch size that is chosen
    sizes.nth(0).click()
    assert [row[2] for row in _cells(devices.locator("table").first)] == ["1,600", "160"]


def test_ranks_of_other_devices(devices: Any) -> None:
    ranks = devices.get_by_label("Data-parallel ranks")
    assert _cells(ranks.locator("table")) == [
        ["H100", "2", "5.00 ms", "150", "75%", "$12.5"],
        ["L4", "2", "5.00 ms", "15.0", "75%", "no price"],
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_tabs_are_accessible(workbench: Workbench, tmp_path: Path, theme: str) -> None:
    workbench.in_theme(theme)
    page = _opened(workbench, tmp_path, **{ELEMENT: _ANSWER, DEVICES_ELEMENT: _DEVICES})
    assert violations(page) == [], "batch sizes"
    page.get_by_role("button", name="Other devices").click()
    assert violations(page) == [], "other devices"
