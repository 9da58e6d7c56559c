"""What the page shows when something is missing, gone or long."""

from __future__ import annotations

from pathlib import Path

from browsing import Workbench
from served_page import serving


def test_a_killed_server_leaves_everything_on_screen(workbench: Workbench, home: Path, traces: Path) -> None:
    trace = traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"
    with serving(home, str(trace)) as url:
        workbench.open(url)
        workbench.click('[data-stage="forward"]')
        workbench.settle()
        levels = workbench.page.locator(".level").count()
    workbench.pane("kernels")
    workbench.page.get_by_text("The server does not answer").first.wait_for()
    # A level that was asked for ahead still opens.
    workbench.page.locator(".level-bars").last.click(position={"x": 40, "y": 10})
    assert workbench.page.locator(".level").count() >= levels
    workbench.pane("overview")
    workbench.page.locator(".verdict").wait_for()
    workbench.page.goto("about:blank")  # so that nothing else is asked
    workbench.problems.clear()  # requests that failed are what is tested


def test_a_link_to_another_trace_offers_the_trace(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=s99.0/t1", shown=".error-line")
    page, end = workbench.page, workbench.ask("axis")["end_ns"]
    page.locator(f'.stack[data-from="0"][data-to="{end}"]').wait_for()
    assert (page.locator(".error-line").count(), page.locator("aside.details").count()) == (1, 0)
    workbench.page.get_by_role("button", name="Go to the trace").click()
    workbench.page.locator(".level canvas").first.wait_for()
    workbench.problems.clear()  # the refusal of the stale path
