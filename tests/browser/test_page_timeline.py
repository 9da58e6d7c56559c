"""The timeline in a browser: what it shows at once, and the way down to one kernel."""

from __future__ import annotations

import pytest
from browsing import Workbench

_TABLE = '.pane[data-pane="search"] table'
_FOUND = f"{_TABLE} tbody tr"


@pytest.fixture
def resnet(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    return workbench


def names(workbench: Workbench, selector: str) -> list[str]:
    return workbench.page.locator(selector).all_inner_texts()


def test_a_click_opens_an_operation_as_the_next_level(resnet: Workbench) -> None:
    backward = next(one for one in resnet.operations("s5.0") if one["name"] == "backward")
    resnet.click_bar(backward["path"])
    assert resnet.path == resnet.chosen == backward["path"]
    assert names(resnet, ".level-title strong") == ["trace", "step 5", "backward"]
    assert resnet.page.locator(".details h2").inner_text() == "backward"
    # The levels around it are one strip each, and the axis shows the stage.
    assert resnet.page.locator(".level.strip").count() == 2
    level = resnet.ask(f"level?path={backward['path']}")["level"]
    assert resnet.page.locator(".stack").get_attribute("data-from") == str(level["start_ns"])


def test_the_device_side_can_be_clicked_as_well(resnet: Workbench) -> None:
    forward = next(one for one in resnet.operations("s5.0") if one["name"] == "forward")
    resnet.click_bar(forward["path"], side="device")
    assert resnet.path == forward["path"]


def test_clicks_lead_from_the_step_to_one_kernel(resnet: Workbench) -> None:
    path = "s5.0"
    while True:
        longest = max(resnet.operations(path), key=lambda one: one["device_ns"])
        path = longest["path"]
        resnet.click_bar(path, side="device")
        if not longest["opens"]:
            break
    assert resnet.clicks <= 12
    resnet.page.locator(".details [aria-label=Kernel]").wait_for()
    details = resnet.details()
    assert {"device, busy", "launched by", "grid", "block", "estimated occupancy"} <= set(details)
    assert resnet.page.locator(".details .chip-text").inner_text() == "kernel"


def test_one_click_leads_down_the_slowest_operations(resnet: Workbench) -> None:
    resnet.page.get_by_role("button", name="Slowest on CPU").click()
    resnet.until("location.hash.split('/').length > 3")
    names_of_levels = names(resnet, ".level-title strong")
    assert names_of_levels[:3] == ["trace", "step 5", "data loading"]
    assert resnet.page.locator(".way").evaluate("way => way.scrollWidth <= way.clientWidth")
    resnet.resize(1200, 900)  # too narrow for the whole way, of which short names stay whole
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert not {"trace", "step 5"} & set(resnet.page.locator(".way button").evaluate_all(cut))


def test_arrows_lead_to_the_kernel_and_to_the_forward_operation(resnet: Workbench) -> None:
    forward, backward = (
        next(one for one in resnet.operations("s5.0") if one["name"] == name)
        for name in ("forward", "backward")
    )
    resnet.open(resnet.url, f"#path=s5.0&chosen={backward['path']}")
    resnet.page.locator(".arrow-launch").first.wait_for(state="attached")
    arrow = resnet.page.locator(".arrow-forward")
    arrow.wait_for(state="attached")
    bars = resnet.page.locator('.level[data-level="s5.0"] .level-bars').bounding_box()
    begin, end = (int(resnet.page.locator(".stack").get_attribute(f"data-{one}")) for one in ("from", "to"))
    level_ns = resnet.ask("level?path=s5.0")["level"]["start_ns"]
    box = arrow.bounding_box()
    for x, one in ((box["x"], forward), (box["x"] + box["width"], backward)):
        at = begin + (x - bars["x"]) / bars["width"] * (end - begin) - level_ns
        assert one["start_ns"] < at < one["end_ns"], one["name"]


def test_device_work_is_drawn_when_it_ran(resnet: Workbench) -> None:
    level = resnet.ask("level?path=s5.0")["level"]
    assert level["shift_ns"] > 0
    device = level["device"]
    first = min(device["start_ns"])
    backward = next(one for one in resnet.operations("s5.0") if one["name"] == "backward")
    assert backward["start_ns"] < max(device["end_ns"])
    stack = resnet.page.locator(".stack")
    assert stack.get_attribute("data-from") == str(level["start_ns"])
    reach = max(max(device["end_ns"]), level["length_ns"])
    assert stack.get_attribute("data-to") == str(level["start_ns"] + reach)
    assert first > 0
    streams = resnet.page.locator('.level[data-level="s5.0"] .row-name[data-side="device"] .row-which')
    for pressed in ("1", None):  # one key draws it below what launched it, and says so
        resnet.page.keyboard.press("~")
        resnet.until(f"{str(pressed is None).lower()} !== location.hash.includes('aligned=1')")
        assert all(text.startswith("~ ") == bool(pressed) for text in streams.all_inner_texts())


def test_the_pointer_tells_what_it_is_on_and_draws_no_bar(resnet: Workbench) -> None:
    marks = "performance.getEntriesByName('level drawn').length"
    before = resnet.page.evaluate(marks)
    for one in ("data_loading", "forward", "backward"):
        path = next(row["path"] for row in resnet.operations("s5.0") if row["name"] == one)
        where = resnet.bar(path)
        resnet.page.mouse.move(where["x"], where["y"])
        name = one.replace("_", " ")
        resnet.until(f"document.querySelector('.tooltip-name')?.innerText === '{name}'")
    assert resnet.page.evaluate(marks) == before


def test_what_the_pointer_is_on_goes_with_its_level(resnet: Workbench) -> None:
    forward = next(one for one in resnet.operations("s5.0") if one["name"] == "forward")
    resnet.click_bar(forward["path"])
    where = resnet.bar(resnet.operations(forward["path"])[0]["path"])
    resnet.page.mouse.move(where["x"], where["y"])
    resnet.page.locator(".tooltip").wait_for()
    resnet.page.keyboard.press("Escape")
    assert resnet.path == "s5.0"
    assert resnet.page.locator(".tooltip").count() == 0


def test_what_the_pointer_was_on_goes_with_the_part_that_was_visible(resnet: Workbench) -> None:
    where = resnet.bar(next(one["path"] for one in resnet.operations("s5.0") if one["name"] == "forward"))
    resnet.page.mouse.move(where["x"], where["y"])
    resnet.page.locator(".tooltip").wait_for()
    resnet.page.keyboard.press("d")
    assert resnet.page.locator(".tooltip").count() == 0
    resnet.page.mouse.move(where["x"] + 1, where["y"])
    resnet.page.locator(".tooltip").wait_for()


def test_the_page_says_that_something_is_on_its_way(resnet: Workbench) -> None:
    busy = "'busy' in document.documentElement.dataset"
    assert not resnet.page.evaluate(busy)
    click = "document.querySelector('[data-stage=backward]').click()"
    assert resnet.page.evaluate(f"() => {{ {click}; return {busy}; }}")
    assert resnet.page.locator(".details h2").inner_text() == "backward"


def test_search_marks_every_level_and_finds_raw_events(resnet: Workbench) -> None:
    forward = next(one for one in resnet.operations("s5.0") if one["name"] == "forward")
    resnet.click_bar(forward["path"])
    resnet.page.keyboard.press("/")
    resnet.page.keyboard.type("sgemm")
    resnet.page.locator(_FOUND).first.wait_for()
    answer = resnet.ask(f"search?text=sgemm&path={forward['path']}")
    assert answer["total"] > 0
    shown = resnet.page.locator(".search-total").inner_text().replace(",", "")
    assert shown == f"{answer['total']} events"
    found = resnet.ask("search_hits?text=sgemm")
    # The whole trace above the axis has a line where each begins, those of a pixel together.
    room = resnet.page.locator(".overview-room").first.bounding_box()
    end = resnet.ask("axis")["end_ns"]
    columns = {int(ns * room["width"] / end) for ns in found["events"]["start_ns"]}
    drawn = resnet.page.locator(".overview-room .hit-marks path").get_attribute("d")
    assert drawn.count("M") == pytest.approx(len(columns), abs=3)
    # So has each track, of its own hits.
    marked = resnet.page.locator(".track:has(.hit-marks)")
    tracks = {str(one.get_attribute("data-track")) for one in marked.all()}
    assert tracks
    assert tracks <= {f"t{number}" for number in found["events"]["track"]}
    longest = found["names"][0]
    resnet.page.locator(_FOUND).first.click()
    place = resnet.ask(f"path?event={longest['longest_event']}")
    resnet.until(f"location.hash.includes({place['path']!r})")
    assert resnet.chosen == place["path"]
    assert "sgemm" in resnet.page.locator(".details h2").inner_text()
    resnet.page.locator("#search").click()
    resnet.page.keyboard.press("Escape")
    resnet.until("!location.hash.includes('text=')")
    resnet.page.locator('.pane[data-pane="overview"]').wait_for()


def test_enter_goes_from_hit_to_hit(resnet: Workbench) -> None:
    resnet.click("#search")
    resnet.page.keyboard.type("sgemm")
    hits = resnet.ask("search_hits?text=sgemm")["events"]
    here = [event for event, step in zip(hits["event"], hits["step"], strict=True) if step == 5]
    for key, event in (("Enter", here[0]), ("Enter", here[1]), ("Shift+Enter", here[0])):
        resnet.page.keyboard.press(key)
        place = resnet.ask(f"path?event={event}")
        resnet.until(f"location.hash.includes({place['path']!r})")
        resnet.page.locator(f'{_FOUND}.marked[data-key="{event}"]').wait_for()
        at = hits["event"].index(event) + 1
        total = resnet.page.locator(".search-total").inner_text()
        assert total.replace(",", "").startswith(f"{at} of ")
    assert resnet.page.evaluate("document.activeElement.id") == "search"
    resnet.picture("search")


def test_the_table_says_what_the_timeline_says(resnet: Workbench) -> None:
    resnet.page.keyboard.press("t")
    rows = resnet.page.locator('.level-tables section[data-level="s5.0"] tbody tr')
    rows.first.wait_for()
    shown = [row.split("\t")[0].strip() for row in rows.all_inner_texts()]
    assert shown == [one["name"].replace("_", " ") for one in resnet.operations("s5.0")]
    rows.filter(has_text="backward").click()
    resnet.page.locator('.level-tables section[data-level^="s5.0/"]').wait_for()
    resnet.page.keyboard.press("t")
    resnet.page.locator(".stack").wait_for()


def test_the_arrow_keys_walk_the_levels(resnet: Workbench) -> None:
    rows = {one["name"]: one["path"] for one in resnet.operations("s5.0")}
    press = resnet.page.keyboard.press
    resnet.page.locator(".stack").focus()
    press("ArrowRight")  # the first operation of the level
    press("ArrowUp")  # the step around it
    assert resnet.chosen == "s5.0"
    press("ArrowDown")  # into the step: its longest stage
    assert resnet.chosen == rows["data_loading"]
    press("ArrowRight")
    assert resnet.chosen == rows["transfer"]
    press("ArrowRight")
    assert resnet.chosen == rows["forward"]
    said = resnet.page.locator(".timeline [role=status]")
    resnet.until("document.querySelector('.timeline [role=status]').innerText.startsWith('forward')")
    assert "bound by CPU" in said.inner_text()
    press("Enter")
    assert resnet.path == rows["forward"]
    press("ArrowDown")
    assert resnet.chosen.startswith(rows["forward"] + "/")
    press("ArrowUp")
    assert resnet.chosen == rows["forward"]
    press("Escape")
    assert resnet.path == "s5.0"
    press("Backspace")
    assert resnet.path == ""


def test_bars_are_drawn_anew_for_a_new_width(resnet: Workbench) -> None:
    resnet.resize(1100, 700)
    bars = "document.querySelector('.level-bars').clientWidth"
    resnet.until(f"{bars} < 1000")
    path = next(one["path"] for one in resnet.operations("s5.0") if one["name"] == "backward")
    resnet.click_bar(path)
    assert resnet.path == path


def test_everything_that_can_be_pressed_has_a_name(resnet: Workbench) -> None:
    unnamed = resnet.page.evaluate(
        "() => [...document.querySelectorAll('button, select, input, [role=separator], canvas')]"
        ".filter(one => !one.ariaHidden && !(one.innerText || one.ariaLabel || one.title"
        " || one.closest('label')?.innerText))"
        ".map(one => one.outerHTML)"
    )
    assert unnamed == []
    assert resnet.page.locator("[role=tab][aria-selected=true]").count() == 1
