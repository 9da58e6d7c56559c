"""The SQL pane: run with the keys, sort, save, one line for a mistake."""

from __future__ import annotations

from pathlib import Path

from browsing import Workbench

_CELLS = ".query td"


def run(bench: Workbench, sql: str) -> None:
    box = bench.page.locator(".query textarea")
    box.fill(sql)
    box.press("Control+Enter")


def test_a_query_is_run_sorted_and_saved(workbench: Workbench, bare_url: str) -> None:
    workbench.open(bare_url)
    workbench.pane("sql")
    assert workbench.page.locator(".query-tables details[open] code").first.inner_text() == "steps"
    run(workbench, "select name, duration_ns from events order by id")
    workbench.page.locator(_CELLS).first.wait_for()
    assert workbench.page.locator(_CELLS).all_inner_texts() == [
        "ProfilerStep#1",
        "90000",
        "aten::mm",
        "50000",
    ]
    workbench.page.get_by_role("button", name="duration_ns").click()
    workbench.page.get_by_role("button", name="duration_ns").click()
    assert workbench.page.locator(_CELLS).first.inner_text() == "aten::mm"
    with workbench.page.expect_download() as saved:
        workbench.page.locator('[data-action="csv"]').click()
    text = Path(saved.value.path()).read_text("utf-8")
    assert text.splitlines() == ["name,duration_ns", "aten::mm,50000", "ProfilerStep#1,90000"]
    workbench.page.reload()
    workbench.page.locator(_CELLS).first.wait_for()
    assert "order by id" in workbench.page.locator(".query textarea").input_value()


def test_a_row_opens_its_event_and_a_name_is_completed(workbench: Workbench, bare_url: str) -> None:
    workbench.open(bare_url)
    workbench.pane("sql")
    box = workbench.page.locator(".query textarea")
    box.fill("select name, id from eve")
    workbench.click('.query-words button:text-is("events")')
    assert box.input_value() == "select name, id from events"
    run(workbench, box.input_value())
    workbench.click('.query tbody tr:has-text("aten::mm")')
    workbench.until("document.querySelector('.details h2')?.innerText === 'aten::mm'")


def test_rows_are_a_track_whose_bars_open_their_events(workbench: Workbench, bare_url: str) -> None:
    """The operator runs from 10 to 60 of the step's 90 us."""
    workbench.open(bare_url)
    workbench.pane("sql")
    run(workbench, "select id, name, start_ns, duration_ns from events where name = 'aten::mm'")
    workbench.click('[data-action="track"]')
    track = workbench.page.locator(".query-lane canvas")
    track.wait_for()
    assert track.get_attribute("aria-label") == "1 row of the query"
    box = track.bounding_box()
    assert box
    track.click(position={"x": box["width"] * 75 / 90, "y": box["height"] / 2})
    workbench.settle()
    assert workbench.page.locator(".details h2").count() == 0
    for share in (12 / 90, 58 / 90):
        track.hover(position={"x": box["width"] * share, "y": box["height"] / 2})
        workbench.until("document.querySelector('.query-lane canvas').title.startsWith('aten::mm 50')")
    track.click()
    workbench.until("document.querySelector('.details h2')?.innerText === 'aten::mm'")
    run(workbench, "select name from events")
    workbench.until("!document.querySelector('[data-action=track]')")


def test_a_mistake_is_one_line_and_the_pane_fits_a_phone(workbench: Workbench, bare_url: str) -> None:
    workbench.resize(390, 844)
    workbench.open(bare_url, "#pane=sql")
    run(workbench, "select nam from events")
    line = workbench.page.locator(".query .error-line")
    line.wait_for()
    assert line.inner_text() == "there is no column 'nam'; did you mean name?"
    workbench.problems[:] = [one for one in workbench.problems if "400" not in one]
    workbench.page.locator('[aria-label="Example queries"]').select_option("0")
    workbench.click('[data-action="run"]')
    workbench.until("document.querySelector('.query-result')")
    workbench.until_it_fits()
