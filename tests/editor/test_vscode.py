"""The extension in a real editor, used as a person would: one session, from top to bottom."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from playwright.sync_api import expect

MEASURED = re.compile(r"samples/s at \d+")
COST = re.compile(r"\d\sm?s\s·")  # an editor draws spaces as others than were sent
STALE = re.compile(r"\([\d.]+\sm?s\s·.*\)")


def test_measuring_marks_the_lines(editor: Any) -> None:
    editor.focus(12)
    with editor.measured():
        editor.command("stepscope: Measure This File")
    expect(editor.status()).to_contain_text(MEASURED)
    expect(editor.line(12)).to_contain_text(COST)
    expect(editor.page.locator(".glyph-margin-widgets > *").nth(2)).to_be_visible()
    editor.look("marks")


def test_a_hover_tells_where_the_time_goes(editor: Any) -> None:
    hover = editor.hover(12, x=90, text="forward")
    expect(hover).to_contain_text("body.0")
    editor.look("hover")
    editor.press("Escape")


def test_dragging_a_bar_changes_the_number_and_one_undo_takes_it_back(editor: Any) -> None:
    before = editor.file.read_bytes()
    editor.command("stepscope: Open Batch Size Panel")
    chosen = editor.drag("Peak memory", [0.3, 0.4, 0.5, 0.6, 0.7])
    assert chosen > 32
    expect(editor.line(20)).to_contain_text(f"batch_size={chosen})")
    expect(editor.line(20)).to_contain_text(re.compile(r"#\snaïve\sguess"))
    editor.look("dragged")
    editor.focus(20)
    editor.press("Control+z")
    expect(editor.line(20)).to_contain_text("batch_size=32)")
    expect(editor.panel.locator("output.batch-size")).to_have_text("32")
    with editor.measured():
        editor.press("Control+s")
    assert editor.file.read_bytes() == before


def test_a_tab_of_the_panel_predicts_other_devices(editor: Any) -> None:
    panel = editor.panel
    panel.get_by_role("button", name="Other devices").click()
    rows = panel.locator(".device-table tbody tr")
    expect(rows).to_have_count(5)
    panel.get_by_label("Devices or instances").fill("A100, g6.xlarge")
    panel.get_by_label("Ranks").fill("2")
    panel.get_by_role("button", name="Predict").click()
    expect(rows).to_have_count(4)  # two devices, each alone and two together
    expect(rows.nth(1)).to_contain_text("L4")
    expect(rows.nth(1)).to_contain_text("fits")
    editor.look("devices")
    panel.get_by_label("Devices or instances").fill("Z9")
    panel.get_by_role("button", name="Predict").click()
    expect(panel.get_by_role("alert")).to_contain_text("unknown device or instance 'Z9'")
    panel.get_by_role("button", name="Batch size", exact=True).click()
    expect(panel.get_by_role("slider", name="Throughput")).to_be_visible()


def test_a_row_of_the_panel_leads_to_its_line_and_back(editor: Any) -> None:
    row = editor.panel.locator(".cost", has_text="model").first
    row.dblclick()
    editor.panel.locator(".cost", has_text="body").first.click()
    expect(editor.page.locator(".line-numbers.active-line-number")).to_have_text("12")
    expect(editor.panel.locator(".cost.at-cursor")).to_contain_text("body")


def test_the_gutter_marks_the_lines_of_the_module_that_is_explored(editor: Any) -> None:
    marks = editor.page.locator(".glyph-margin-widgets > *")
    expect(marks).to_have_count(2)  # the two calls in `forward` of the model that is open
    editor.look("explored")
    editor.panel.get_by_role("button", name="step", exact=True).click()
    expect(marks.nth(2)).to_be_visible()  # the iteration's lines are back


def test_an_action_offers_other_batch_sizes(editor: Any) -> None:
    offer = editor.page.locator(".action-widget", has_text="Set batch size to").first
    for _ in range(8):  # sizes are offered only if the measurement predicts well
        editor.focus(20)
        editor.press("Control+.")
        with suppress(AssertionError):
            expect(offer).to_be_visible(timeout=10_000)
            break
        editor.press("Escape")
        with editor.measured():
            editor.command("stepscope: Measure This File")
    expect(offer).to_be_visible()
    editor.look("action")
    editor.press("Escape")


def test_saving_measures_again(editor: Any) -> None:
    editor.focus(12)
    editor.press("End")
    editor.page.keyboard.type("  # changed")
    expect(editor.line(12)).to_contain_text(STALE)  # stale
    with editor.measured():
        editor.press("Control+s")
    expect(editor.line(12)).not_to_contain_text(STALE)
    expect(editor.line(12)).to_contain_text(COST)


def test_a_mistake_is_a_problem_at_its_line_and_measuring_goes_on_after_it(editor: Any) -> None:
    mistake = ".nonsense()"
    editor.focus(13)
    editor.press("End")
    editor.page.keyboard.type(mistake)
    editor.press("Control+s")
    errors = editor.page.locator("[id='status.problems']")
    expect(errors).to_have_attribute("aria-label", re.compile("Errors: 1"))
    expect(editor.status()).to_contain_text("AttributeError at train.py:13")
    editor.look("problem")
    for _ in mistake:
        editor.press("Backspace")
    with editor.measured():
        editor.press("Control+s")
    expect(errors).not_to_have_attribute("aria-label", re.compile("Errors: 1"))
    expect(editor.status()).to_contain_text(MEASURED)


def test_in_the_dark(editor: Any) -> None:
    editor.command("Preferences: Toggle between Light/Dark Themes")
    expect(editor.page.locator(".monaco-workbench.vs-dark")).to_be_visible()
    expect(editor.panel.locator("html[data-theme=dark] .batch-size")).to_be_visible()
    editor.look("dark")


def test_the_server_can_be_started_anew(editor: Any) -> None:
    editor.focus(12)
    with editor.measured():
        editor.command("stepscope: Restart Language Server")
        editor.command("stepscope: Measure This File")
    expect(editor.line(12)).to_contain_text(COST)
