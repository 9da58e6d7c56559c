"""What the page shows when something is missing, gone or long."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import Workbench
from conftest import serving


def test_a_killed_server_leaves_everything_on_screen(
    workbench: Workbench, home: Path, traces: Path
) -> None:
    trace = traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"
    with serving(home, str(trace)) as url:
        workbench.open(url)
        workbench.click('[data-stage="forward"]')
        workbench.settle()
        levels = workbench.page.locator(".level").count()
    workbench.pane("kernels")
    workbench.page.locator(".level-bars").last.click(position={"x": 40, "y": 10})
    workbench.page.get_by_text("The server does not answer").first.wait_for()
    assert workbench.page.locator(".level").count() == levels
    workbench.pane("overview")
    workbench.page.locator(".verdict").wait_for()
    workbench.problems.clear()  # requests that failed are what is tested


def test_a_link_to_another_trace_offers_the_trace(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=s99.0/t1", shown=".error-line")
    workbench.page.get_by_role("button", name="Go to the trace").click()
    workbench.page.locator(".level canvas").first.wait_for()
    workbench.problems.clear()  # the refusal of the stale path


def test_one_key_goes_to_the_longest_kernel_of_the_step(
    workbench: Workbench, resnet_url: str
) -> None:
    resnet = workbench
    resnet.open(resnet_url)
    resnet.settle()
    rows = resnet.ask("kernels?rank=0&step=8")["rows"]
    longest = max(rows, key=lambda row: row["most_ns"])
    resnet.page.keyboard.press("g")
    resnet.until("location.hash.split('/').length > 3")
    resnet.settle()
    details = resnet.ask(f"details?path={resnet.chosen}")
    assert details["full_name"] == longest["name"]
    assert details["device_ns"] == pytest.approx(longest["most_ns"])
