"""HOTLINE's four tasks for users, each in at most three clicks from the start page.

Source: HOTLINE section 6.3. There people answered over a picture; here the answer is read off the
page and compared with what the trace says.
"""

from __future__ import annotations

import pytest
from browsing import Workbench

_MOST_CLICKS = 3


@pytest.fixture
def start(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    workbench.page.locator(".verdict").wait_for()
    assert workbench.clicks == 0
    return workbench


def test_what_is_the_slowest_operation_on_the_cpu(start: Workbench) -> None:
    start.click('button:has-text("Slowest on CPU")')
    assert start.clicks <= _MOST_CLICKS
    shown = start.page.locator(".details h2").inner_text()
    # The slowest way down: at each level the operation that takes longest on the CPU.
    path, own = "s5.0", 0
    while True:
        inside = start.operations(path)
        longest = max(inside, key=lambda one: one["cpu_ns"], default=None)
        if longest is None or longest["cpu_ns"] == 0 or own > longest["cpu_ns"]:
            break
        path, name, own = longest["path"], longest["name"], longest["self_ns"]
        if not longest["opens"]:
            break
    assert (start.chosen, shown) == (path, name)


def test_what_is_the_fastest_operation_on_the_gpu(start: Workbench) -> None:
    start.pane("kernels")
    start.click('.pane th button:has-text("mean")')
    start.click('.pane th button:has-text("mean")')
    assert start.clicks <= _MOST_CLICKS
    row = start.page.locator(".pane tbody tr").first.inner_text().split("\t")
    fastest = min(start.ask("kernels")["rows"], key=lambda one: one["mean_ns"])
    assert row[0].strip() == fastest["short"]


def test_is_backward_bound_by_the_gpu_or_the_cpu(start: Workbench) -> None:
    bound = start.page.locator('[data-stage="backward"] .bound').inner_text()
    assert start.clicks <= _MOST_CLICKS
    backward = next(one for one in start.operations("s5.0") if one["name"] == "backward")
    assert bound == backward["bound_by"] == "device"
    assert backward["device_ns"] > backward["cpu_ns"]


def test_which_operation_of_layer_3_is_best_to_speed_up(start: Workbench) -> None:
    start.pane("modules")
    start.click('[data-key="layer3"] .twist')
    assert start.clicks <= _MOST_CLICKS
    inside = '[data-key^="layer3."]'
    hottest = start.page.locator(f"{inside} .hottest")
    assert hottest.count() == 1
    tree = start.ask("modules")["tree"][0]["children"]
    blocks = next(one for one in tree if one["path"] == "layer3")["children"]
    keys = ("forward_device_ms", "backward_device_ms")
    best = max(blocks, key=lambda one: sum(one[key] for key in keys))
    assert hottest.inner_text() == best["name"]
