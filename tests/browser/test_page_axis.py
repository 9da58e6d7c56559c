"""The time axis in a browser: moving it, its tracks, and the statistics of a dragged area."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browsing import Workbench


@pytest.fixture
def resnet(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    workbench.page.locator(".track").first.wait_for()
    return workbench


def window(workbench: Workbench) -> tuple[int, int]:
    """What is visible, ns."""
    stack = workbench.page.locator(".stack")
    return int(stack.get_attribute("data-from")), int(stack.get_attribute("data-to"))


def rest(workbench: Workbench) -> None:
    """Wait until the URL says what is visible."""
    workbench.until("location.hash.includes('at=')")


def bars(workbench: Workbench, track: str) -> dict[str, float]:
    """Where a track is, scrolled into sight."""
    bars = workbench.page.locator(f'[data-track="{track}"] .track-bars')
    bars.scroll_into_view_if_needed()
    return bars.bounding_box()


def track_of(workbench: Workbench, kind: str) -> Any:
    """The busiest track of a kind."""
    tracks = workbench.ask("axis")["tracks"]
    return max((one for one in tracks if one["kind"] == kind), key=lambda one: one["slices"])


def test_the_keys_zoom_and_move_the_axis(resnet: Workbench) -> None:
    before = window(resnet)
    resnet.page.keyboard.press("w")
    rest(resnet)
    nearer = window(resnet)
    assert before[0] < nearer[0] < nearer[1] < before[1]
    resnet.page.keyboard.press("d")
    resnet.until(f"Number(document.querySelector('.stack').dataset.from) > {nearer[0]}")
    moved = window(resnet)
    assert moved[1] - moved[0] == pytest.approx(nearer[1] - nearer[0], abs=2)
    resnet.page.keyboard.press("0")
    resnet.until("!location.hash.includes('at=')")
    assert window(resnet) == before


def test_the_wheel_zooms_where_the_pointer_is(resnet: Workbench) -> None:
    box, before = bars(resnet, track_of(resnet, "device")["id"]), window(resnet)
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    time = before[0] + (before[1] - before[0]) / 4
    resnet.page.mouse.move(x, y)
    resnet.page.keyboard.down("Control")
    resnet.page.mouse.wheel(0, -100)
    resnet.page.keyboard.up("Control")
    rest(resnet)
    after = window(resnet)
    assert after[1] - after[0] < before[1] - before[0]
    assert after[0] + (after[1] - after[0]) / 4 == pytest.approx(time, rel=1e-3)


def test_times_have_the_digits_that_the_zoom_shows_and_stay_in_the_window(resnet: Workbench) -> None:
    thread = track_of(resnet, "cpu")["id"]
    box = bars(resnet, thread)
    middle = (box["x"] + box["width"] / 2, box["y"] + 8)
    starts = []
    for presses in (0, 24):
        for _ in range(presses):
            resnet.page.keyboard.press("w")
        resnet.page.mouse.move(middle[0], middle[1] + 1)
        resnet.page.mouse.move(*middle)
        tip = resnet.page.locator(".tooltip").inner_text()
        starts.append(re.search(r"start\s+([\d.,]+)", tip)[1])
    assert len(starts[1]) > len(starts[0]) + 2
    resnet.page.mouse.move(box["x"] + box["width"] - 2, middle[1])
    label = resnet.page.locator(".ruler-pointer").bounding_box()
    assert label["x"] + label["width"] <= box["x"] + box["width"]


def test_counters_of_an_area_and_at_the_pointer(resnet: Workbench) -> None:
    thread, stream = track_of(resnet, "cpu")["id"], track_of(resnet, "device")["id"]
    top, bottom = bars(resnet, thread), bars(resnet, stream)
    resnet.page.mouse.move(top["x"] + top["width"] * 0.5, top["y"] + 4)
    resnet.page.mouse.down()
    resnet.page.mouse.move(top["x"] + top["width"] * 0.75, bottom["y"] + 8, steps=4)
    resnet.page.mouse.up()
    resnet.page.locator('.details [aria-label="Kernels in the area"]').wait_for()
    start, end = (int(one) for one in resnet.said["area"].split(",")[0].split("-"))
    rows = resnet.page.locator('.details [aria-label="Counters in the area"] tbody tr')
    (row,) = (text for text in rows.all_inner_texts() if text.startswith("GPU 0 utilization"))
    _, _, mean, _ = row.split("\t")
    assert percent(mean) == pytest.approx(utilization(resnet, start, end - start), abs=0.5)
    a_counter_has_its_value_at_the_pointer(resnet)


def test_a_slice_of_a_track_leads_to_its_operation_and_the_axis_stays(resnet: Workbench) -> None:
    stream, (start, end) = track_of(resnet, "device")["id"], window(resnet)
    axis = resnet.ask("axis")
    zoom = 3
    length = axis["tile_ns"] >> zoom
    tile = int((start + end) / 2) // length
    answer = resnet.ask(f"slices?track={stream}&zoom={zoom}&tile={tile}")
    columns = answer["slices"]
    inside = [
        row
        for row, at in enumerate(columns["start_ns"])
        if start <= tile * length + at and tile * length + at + columns["duration_ns"][row] <= end
    ]
    longest = max(inside, key=lambda row: columns["duration_ns"][row])
    middle = tile * length + columns["start_ns"][longest] + columns["duration_ns"][longest] / 2
    box = bars(resnet, stream)
    resnet.page.mouse.click(box["x"] + (middle - start) / (end - start) * box["width"], box["y"] + 6)
    event = columns["event"][longest]
    place = resnet.ask(f"path?event={event}")
    resnet.until(f"location.hash.includes('chosen={place['path']}')")
    assert window(resnet) == (start, end)


def test_a_track_opens_closes_and_is_pinned(resnet: Workbench) -> None:
    thread = track_of(resnet, "cpu")["id"]
    height = bars(resnet, thread)["height"]
    resnet.click(f'[data-track="{thread}"] .twist')
    assert bars(resnet, thread)["height"] < height / 2
    last = resnet.page.locator(".track").last.get_attribute("data-track")
    resnet.page.locator(f'[data-track="{last}"] .pin').press("Enter")
    assert resnet.page.locator(".track").first.get_attribute("data-track") == last


def test_the_way_back_and_a_reload_show_the_same_part(resnet: Workbench) -> None:
    resnet.page.keyboard.press("w")
    rest(resnet)
    there = window(resnet)
    resnet.open(resnet.url, f"#{resnet.fragment}")
    assert window(resnet) == there


def test_the_splitter_follows_the_pointer(resnet: Workbench) -> None:
    drag_the_splitter(resnet)
    resnet.page.keyboard.press("t")
    resnet.page.locator(".level-tables").wait_for()
    drag_the_splitter(resnet)


def drag_the_splitter(workbench: Workbench) -> None:
    """Up, then down again by less."""
    splitter, mouse = workbench.page.locator(".splitter"), workbench.page.mouse
    line = splitter.bounding_box()
    x, y = line["x"] + 40, line["y"] + 2
    mouse.move(x, y)
    mouse.down()
    for by in (-30, -110, -60):
        mouse.move(x, y + by)
        assert splitter.bounding_box()["y"] - line["y"] == pytest.approx(by, abs=1.5)
    mouse.up()
    mouse.move(x, y)
    assert splitter.bounding_box()["y"] - line["y"] == pytest.approx(-60, abs=1.5)


def a_counter_has_its_value_at_the_pointer(workbench: Workbench) -> None:
    counters = workbench.ask("axis")["counters"]
    (counter,) = (one for one in counters if one["unit"] == "share")
    lane = workbench.page.locator(f'[data-counter="{counter["id"]}"] .counter-bars')
    lane.scroll_into_view_if_needed()
    box, (start, end) = lane.bounding_box(), window(workbench)
    pixel = (end - start) / box["width"]
    for share in (0.3, 0.5, 0.8):
        column = int(box["width"] * share)
        workbench.page.mouse.move(box["x"] + column + 0.5, box["y"] + box["height"] / 2)
        value = percent(lane.locator(".counter-value").inner_text())
        # A bin of a tile is up to 1.5 px wide, and need not begin where a pixel does.
        around = [
            utilization(workbench, start + (column + by) * pixel, pixel)
            for by in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)
        ]
        assert min(around) - 1 <= value <= max(around) + 1


def utilization(workbench: Workbench, start: float, length: float) -> float:
    """The share of some time in which the device works, percent."""
    answer = workbench.ask(f"area?from={round(start)}&to={round(start + length)}")
    (device,) = answer["devices"]
    busy = sum(device[f"{one}_ns"] for one in ("computing", "copying", "communicating"))
    return 100 * busy / (answer["end_ns"] - answer["start_ns"])


def percent(text: str) -> float:
    """The number of `12%`."""
    return float(text.split("%")[0])


def test_times_are_told_from_a_marker_until_it_is_taken_away(resnet: Workbench) -> None:
    box, (start, end) = bars(resnet, track_of(resnet, "device")["id"]), window(resnet)
    y = box["y"] + box["height"] - 2
    resnet.page.mouse.move(box["x"] + box["width"] / 4, y)
    resnet.page.keyboard.press("k")
    resnet.until("location.hash.includes('marker=')")
    near = (end - start) / box["width"] * 6
    marker = int(resnet.said["marker"])
    assert marker == pytest.approx(start + (end - start) / 4, abs=near)
    for strip in (".overview-strip", ".ruler", ".stack"):
        assert resnet.page.locator(f"{strip} .marker-line").count() == 1, strip
    line = resnet.page.locator(".stack .marker-line").bounding_box()
    assert line["x"] == pytest.approx(box["x"] + (marker - start) / (end - start) * box["width"], abs=2)
    for share, sign in ((1 / 8, "−"), (1 / 2, "+")):
        resnet.page.mouse.move(box["x"] + box["width"] * share, y)
        said = resnet.page.locator(".ruler-pointer").inner_text()
        told = re.search(r"\(([+−])([\d.]+)\sms\)", said)
        assert told, said
        assert told[1] == sign
        away = abs(share - 1 / 4) * (end - start)
        assert float(told[2]) * 1e6 == pytest.approx(away, abs=2 * near)
    resnet.page.keyboard.press("Escape")
    resnet.until("!location.hash.includes('marker=')")
    for _ in range(2):  # sets it, and takes it away at the same place
        resnet.page.keyboard.press("k")
    resnet.until("!document.querySelector('.marker-line')")


def test_the_edges_of_an_area_are_dragged_and_moved_by_keys(resnet: Workbench) -> None:
    resnet.page.keyboard.press("r")
    resnet.until("document.activeElement?.dataset.edge === 'from'")
    first = area(resnet)
    assert first == pytest.approx(window(resnet), abs=1)
    resnet.page.keyboard.press("Shift+ArrowRight")
    resnet.until(f"!location.hash.includes('area={first[0]}-')")
    by_key = area(resnet)
    assert by_key[0] > first[0]
    assert by_key[1] == first[1]
    edge = resnet.page.locator('[data-edge="to"]').bounding_box()
    x, y = edge["x"] + edge["width"] / 2, edge["y"] + 30
    resnet.page.mouse.move(x, y)
    resnet.page.mouse.down()
    resnet.page.mouse.move(x - 200, y, steps=3)
    resnet.page.mouse.up()
    resnet.until(f"!location.hash.includes('-{first[1]}')")
    dragged = area(resnet)
    bars_px = resnet.page.locator(".track-bars").first.bounding_box()["width"]
    moved = 200 / bars_px * (first[1] - first[0])
    assert dragged == pytest.approx((by_key[0], first[1] - moved), rel=1e-3)
    heading = resnet.page.locator(".details h2")
    assert heading.inner_text().startswith("Selected")
    resnet.page.keyboard.press("Escape")
    resnet.until("!document.querySelector('.area-edge')")


def area(workbench: Workbench) -> tuple[int, int]:
    start, end = workbench.said["area"].split(",")[0].split("-")
    return int(start), int(end)
