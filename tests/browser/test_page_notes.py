"""Notes pinned to a moment or a row, in a browser: written, shown on the axis, kept in the URL."""

from __future__ import annotations

import pytest
from browsing import Workbench
from violations import violations


@pytest.fixture
def resnet(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    workbench.page.locator(".track").first.wait_for()
    return workbench


def write(bench: Workbench, text: str) -> None:
    """Type into the note that was just begun."""
    bench.until("document.activeElement.closest('.notes') !== null")
    bench.page.keyboard.type(text)
    bench.page.keyboard.press("Enter")
    bench.until(
        f"location.hash.includes('notes=') && document.querySelector('.note-flag')"
        f"?.innerText !== '' && [...document.querySelectorAll('.notes input')]"
        f".some(one => one.value === {text!r})"
    )


def note_a_moment(bench: Workbench, share: float, text: str) -> int:
    """A note on what is below the pointer; its time, ns."""
    bars = bench.page.locator(".level-bars").last
    bars.scroll_into_view_if_needed()
    box = bars.bounding_box()
    bench.page.mouse.move(box["x"] + share * box["width"], box["y"] + 6)
    bench.page.keyboard.press("n")
    bench.page.mouse.move(2, 2)
    write(bench, text)
    stack = bench.page.locator(".stack")
    start, end = (int(stack.get_attribute(f"data-{side}") or 0) for side in ("from", "to"))
    return int(start + share * (end - start))


def flags(bench: Workbench) -> list[str]:
    bench.settle()
    return bench.page.locator(".note-flag").all_inner_texts()


def test_a_note_is_pinned_to_a_moment(resnet: Workbench) -> None:
    time = note_a_moment(resnet, 0.75, "the loader sleeps")  # far from both ends of the trace
    assert flags(resnet) == ["the loader sleeps"]
    bars = resnet.page.locator(".level-bars").last.bounding_box()
    flag = resnet.page.locator(".note-flag").bounding_box()
    assert flag["x"] == pytest.approx(bars["x"] + bars["width"] * 3 / 4, abs=3)
    resnet.page.keyboard.press("w")
    resnet.until("location.hash.includes('at=')")
    resnet.page.locator(".notes .chip").click()
    resnet.until("document.querySelector('.note-flag') !== null")
    stack = resnet.page.locator(".stack")
    start, end = (int(stack.get_attribute(f"data-{side}") or 0) for side in ("from", "to"))
    assert (start + end) / 2 == pytest.approx(time, abs=(end - start) / 50)


def test_a_note_is_pinned_to_a_row(resnet: Workbench) -> None:
    resnet.pane("kernels")
    resnet.page.locator(".pane tbody tr").nth(1).click()
    resnet.until("location.hash.includes('subject=kernel')")
    chosen, name = resnet.chosen, resnet.page.locator(".details h2").inner_text()
    resnet.click('[data-action="note"]')
    write(resnet, "too many of these")
    resnet.open(resnet.base, f"#notes={resnet.fragment.partition('notes=')[2].partition('&')[0]}")
    resnet.page.locator("#tab-notes").click()
    assert resnet.page.locator(".notes input").input_value() == "too many of these"
    resnet.page.locator(".notes .chip").click()
    resnet.until("location.hash.includes('subject=kernel')")
    assert (resnet.chosen, resnet.page.locator(".details h2").inner_text()) == (chosen, name)
    resnet.page.locator('.pane[data-pane="kernels"] tr.marked').wait_for()


def test_a_note_is_pinned_to_a_row_of_a_table(workbench: Workbench, several_url: str) -> None:
    """Of one that leads to no operation as well: a collective by rank."""
    workbench.open(several_url, "#trace=dlrm_8rank_v100&pane=collectives&byRank=1")
    row = workbench.page.locator(".pane tbody tr").nth(2)
    key = row.get_attribute("data-key")
    path = workbench.path
    row.hover()
    row.get_by_role("button", name="Write a note").click()
    workbench.until("document.activeElement.closest('.notes') !== null")
    workbench.page.keyboard.type("too early")
    workbench.page.keyboard.press("Enter")
    workbench.until("location.hash.includes('too+early')")
    other = Workbench(workbench.context)
    other.open(workbench.base, f"#{workbench.fragment}")
    other.page.locator(".notes .chip").click()
    shown = other.page.locator('.pane[data-pane="collectives"] tr.marked')
    shown.wait_for()
    assert (shown.get_attribute("data-key"), other.path) == (key, path)
    assert other.page.locator(".row-note.noted").get_attribute("title") == "too early"
    assert other.problems == []


def test_a_note_on_a_filtered_row_is_gone_to(resnet: Workbench) -> None:
    resnet.pane("kernels")
    row = resnet.page.locator(".pane tbody tr").nth(3)
    key = row.get_attribute("data-key")
    assert row.bounding_box()["height"] < 30  # the mark takes no line of its own
    row.hover()
    row.get_by_role("button", name="Write a note").click()
    resnet.until("document.activeElement.closest('.notes') !== null")
    resnet.page.keyboard.type("fuse these")
    resnet.page.keyboard.press("Enter")
    resnet.pane("kernels")
    resnet.page.get_by_role("searchbox", name="Filter kernels").fill("nothing like it")
    resnet.page.locator("#tab-notes").click()
    resnet.page.locator(".notes .chip").click()
    marked = resnet.page.locator('.pane[data-pane="kernels"] tr.marked')
    marked.wait_for()
    assert marked.get_attribute("data-key") == key
    resnet.click(".row-note.noted")
    resnet.until("document.activeElement.closest('.notes') !== null")
    assert resnet.page.locator(".notes input").count() == 1


def test_a_url_carries_notes_and_the_way_back_keeps_them(resnet: Workbench) -> None:
    resnet.click('[data-stage="forward"]')
    resnet.until("document.querySelectorAll('.level').length === 3")
    note_a_moment(resnet, 0.5, "here & <b>there</b>")
    resnet.page.go_back()
    resnet.until("document.querySelectorAll('.level').length === 2")
    assert flags(resnet) == ["here & <b>there</b>"]
    other = Workbench(resnet.context)
    other.open(resnet.base, f"#{resnet.fragment}")
    assert flags(other) == ["here & <b>there</b>"]
    assert other.problems == []


def test_a_note_is_deleted_or_left_empty(resnet: Workbench) -> None:
    note_a_moment(resnet, 0.5, "first")
    resnet.page.get_by_role("button", name="Delete the note").click()
    resnet.until("!location.hash.includes('notes=')")
    resnet.click('[data-stage="forward"]')
    resnet.page.locator(".details h2").wait_for()
    resnet.page.keyboard.press("n")
    resnet.until("document.activeElement.closest('.notes') !== null")
    resnet.page.keyboard.press("Escape")
    resnet.until("document.querySelector('#tab-notes') === null")
    assert flags(resnet) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_is_accessible_and_fits(resnet: Workbench, theme: str, width: int) -> None:
    resnet.in_theme(theme)
    resnet.resize(width, 844)
    note_a_moment(resnet, 0.2, "a note that is longer than there is room for on a telephone")
    note_a_moment(resnet, 0.4, "another one")
    assert violations(resnet.page) == []
    resnet.until_it_fits()
    resnet.picture(f"notes-{theme}-{width}")
