"""The memory pane: areas over time, what lives at a moment, and the holes between."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Workbench
from conftest import single_file_of
from served_page import serving
from violations import violations

sys.path.append(str(Path(__file__).parents[1] / "unit" / "models" / "memory"))
from model_allocator import MIB, ModelAllocator, frame

_FORWARD = [
    frame("/home/me/model.py", 54),
    frame("/usr/lib/python3/dist-packages/torch/nn/modules/module.py", 9, "_call_impl"),
]
_PLOT = ".memory-plot"


@pytest.fixture(scope="module")
def snapshot_url(home: Path) -> Iterator[str]:
    """Training steps whose activations rise and fall, and at last an out-of-memory error."""
    allocator = ModelAllocator(segment_bytes=48 * MIB)
    for line in (3, 4):
        allocator.alloc(8 * MIB, [frame("/home/me/model.py", line, "__init__")])
    for _ in range(4):
        activations = [allocator.alloc(4 * MIB, _FORWARD) for _ in range(12)]
        for address in reversed(activations):
            allocator.free(address)
    allocator.fail(1 << 32, 5 * MIB)
    path = home / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    with serving(home, str(path)) as url:
        yield url


@pytest.fixture
def snapshot(workbench: Workbench, snapshot_url: str) -> Workbench:
    workbench.open(snapshot_url, shown=f"{_PLOT} canvas")
    return workbench


def heading(workbench: Workbench) -> str:
    workbench.settle()
    text = workbench.page.locator(".memory-living h2").inner_text()
    return text.replace("\u202f", " ")


def click_at(workbench: Workbench, share: float) -> int:
    """Click into the areas at a share of what is visible; the moment that the URL says."""
    plot = workbench.page.locator(_PLOT)
    box = plot.bounding_box()
    workbench.click(_PLOT, position={"x": box["width"] * share, "y": box["height"] / 2})
    workbench.until("location.hash.includes('memory=')")
    return int(workbench.said["memory"].split(",")[0])


def test_a_snapshot_shows_what_lives_at_its_peak(snapshot: Workbench) -> None:
    assert snapshot.page.get_by_role("tab").all_inner_texts() == ["Memory", "SQL"]
    assert heading(snapshot).startswith("67.1 MB live at")
    assert heading(snapshot).endswith(", the peak")
    rows = snapshot.page.locator(".memory-living tbody tr").all_inner_texts()
    assert {row.split("\t")[-1].strip() for row in rows} == {
        "me/model.py:54 forward",
        "me/model.py:3 __init__",
        "me/model.py:4 __init__",
    }
    assert "Out of memory" in snapshot.page.locator(".memory-verdict").inner_text()


def stack(workbench: Workbench) -> tuple[str, list[str]]:
    """The heading and the frames of the stack that is shown."""
    workbench.settle()
    title = workbench.page.locator(".memory-stack h2").inner_text().replace("\u202f", " ")
    return title, workbench.page.locator(".memory-stack li").all_inner_texts()


@pytest.mark.parametrize("live", [True, False], ids=["page", "single file"])
def test_the_stack_of_an_allocation_is_a_click_away(
    workbench: Workbench, snapshot_url: str, home: Path, live: bool
) -> None:
    url = snapshot_url if live else single_file_of(home / "snapshot.pickle").as_uri()
    workbench.open(url, shown=f"{_PLOT} canvas")
    title, frames = stack(workbench)
    assert workbench.clicks == 0
    assert title.startswith("Stack of the largest allocation: 8.39 MB")
    assert frames == ["me/model.py:3 __init__"]
    workbench.click('.memory-living tbody tr:has-text("model.py:54")')
    title, frames = stack(workbench)
    assert workbench.clicks == 1
    assert title == "Stack of its largest allocation: 4.19 MB of temporaries"
    assert frames == ["me/model.py:54 forward", "modules/module.py:9 _call_impl"]


def test_the_areas_follow_the_timeline(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=s5.0&pane=memory")
    workbench.page.locator(f"{_PLOT} canvas").wait_for()
    before = workbench.page.locator(".memory-times").inner_text()
    workbench.page.locator(".stack").focus()
    workbench.page.keyboard.press("w")
    workbench.until("document.querySelector('.memory-times').innerText !== " + repr(before))
    span = [int(part) for part in workbench.said["at"].split("-")]
    moment = click_at(workbench, 0.25)
    assert moment == pytest.approx(span[0] + 0.25 * (span[1] - span[0]), rel=0.01)


def test_the_moment_moves_with_the_keyboard(snapshot: Workbench) -> None:
    plot = snapshot.page.locator(_PLOT)
    plot.focus()
    snapshot.page.keyboard.press("Home")
    assert plot.get_attribute("aria-valuenow") == "0"
    assert heading(snapshot).startswith("0 B live at 0 ns")
    snapshot.page.keyboard.press("End")
    assert heading(snapshot).startswith("16.8 MB live at")
    snapshot.page.keyboard.press("Shift+ArrowLeft")
    snapshot.settle()
    assert int(plot.get_attribute("aria-valuenow")) < int(plot.get_attribute("aria-valuemax"))
    times = snapshot.page.locator(".memory-times").inner_text()
    snapshot.page.keyboard.press("+")
    snapshot.until("document.querySelector('.memory-times').innerText !== " + repr(times))
    snapshot.page.keyboard.press("0")
    snapshot.until("document.querySelector('.memory-times').innerText === " + repr(times))


def test_a_chosen_area_stands_out_and_is_listed_alone(snapshot: Workbench) -> None:
    snapshot.page.get_by_label("Areas by", exact=True).select_option("line")
    snapshot.settle()
    snapshot.click('.memory-legend button:has-text("model.py:3")')
    snapshot.settle()
    rows = snapshot.page.locator(".memory-living tbody tr")
    assert rows.count() == 1
    assert "model.py:3" in rows.inner_text()
    pressed = snapshot.page.locator('.memory-legend [aria-pressed="true"]')
    assert "model.py:3" in pressed.inner_text()
    snapshot.click('.memory-living button:has-text("show all")')
    snapshot.settle()
    assert rows.count() > 1


def test_segments_and_their_holes_are_those_of_the_moment(snapshot: Workbench) -> None:
    title = snapshot.page.locator(".memory-segments h2")
    assert title.inner_text().replace("\u202f", " ").startswith("101 MB reserved in 2 segments")
    assert snapshot.page.locator(".segment-map").count() == 2
    snapshot.page.locator(_PLOT).focus()
    snapshot.page.keyboard.press("Home")
    snapshot.settle()
    assert "1 segment," in title.inner_text()


def test_the_failed_allocation_is_marked_and_can_be_gone_to(snapshot: Workbench) -> None:
    assert snapshot.page.locator(".memory-mark.failure").count() == 1
    snapshot.click(".memory-failure")
    assert heading(snapshot).startswith("16.8 MB live at")


def test_the_same_url_shows_the_same(snapshot: Workbench, snapshot_url: str) -> None:
    click_at(snapshot, 0.3)
    said = heading(snapshot)
    snapshot.open(snapshot_url, f"#{snapshot.fragment}", shown=f"{_PLOT} canvas")
    assert heading(snapshot) == said


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_is_accessible_and_fits(snapshot: Workbench, theme: str, width: int) -> None:
    snapshot.in_theme(theme)
    snapshot.resize(width, 844)
    assert violations(snapshot.page) == []
    snapshot.until_it_fits()
    snapshot.picture(f"memory-{theme}-{width}")
