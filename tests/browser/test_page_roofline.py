"""The roofline plot of the kernels: dots, roofs, and the way to both without a mouse."""

from __future__ import annotations

import pytest
from browsing import Workbench

_DOTS = ".roofline .dot"


@pytest.fixture
def roofline(workbench: Workbench, resnet_url: str) -> Workbench:
    workbench.open(resnet_url)
    workbench.pane("kernels")
    workbench.click('[data-action="roofline"]')
    workbench.page.locator(_DOTS).first.wait_for()
    return workbench


def test_each_kernel_with_known_work_is_a_dot_below_the_roofs(roofline: Workbench) -> None:
    answer = roofline.ask("kernels")
    counted = [row for row in answer["rows"] if row["intensity"] and row["gbytes"]]
    assert roofline.page.locator(_DOTS).count() == len(counted) > 20
    assert answer["roofs"] == {"device": "V100", "gbytes": 900, "tflops": {"fp32": 15.7}}
    assert roofline.page.locator(".roof-name").all_text_contents() == ["900 GB/s", "FP32 15.7 TFLOP/s"]
    above = [row for row in counted if (row["of_peak"] or 0) > 1]
    assert len(above) == roofline.page.locator(".roofline .doubtful").count()


def test_the_axis_is_in_sight_in_a_low_drawer(roofline: Workbench) -> None:
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    assert roofline.page.evaluate(f"{bottom.format('.roofline svg')} <= {bottom.format('.pane')}")


def test_the_dots_are_walked_and_chosen_with_keys(roofline: Workbench) -> None:
    by_time = sorted(roofline.ask("kernels")["rows"], key=lambda row: -row["total_ms"])
    roofline.page.locator(_DOTS + '[tabindex="0"]').focus()
    focused = "document.activeElement.getAttribute('aria-label')"
    assert roofline.page.evaluate(focused).startswith(by_time[0]["short"])
    roofline.page.keyboard.press("ArrowRight")
    said = roofline.page.evaluate(focused)
    assert said.startswith(by_time[1]["short"])
    assert "ms a step" in said
    assert "TFLOP/s at" in said
    assert "% of peak (compute)" in said
    assert roofline.page.locator(".roofline-readout").inner_text() == said
    roofline.page.keyboard.press("Enter")
    roofline.until("location.hash.includes('subject=kernel')")
    assert roofline.said["subject"] == f"kernel:{by_time[1]['name']}"
    roofline.until("document.querySelectorAll('.roofline tr.marked').length === 1")
    assert roofline.page.locator(_DOTS + '[aria-pressed="true"]').count() == 1


def test_it_is_filtered_kept_in_the_url_and_fits_a_phone(roofline: Workbench) -> None:
    roofline.page.get_by_label("Filter kernels").fill("sgemm")
    roofline.until(f"document.querySelectorAll('{_DOTS}').length < 15")
    assert roofline.page.locator(_DOTS).count() > 0
    roofline.resize(390, 844)
    roofline.page.reload()
    roofline.page.locator(_DOTS).first.wait_for()
    roofline.page.locator(".roofline-readout").scroll_into_view_if_needed()
    roofline.until_it_fits()
    roofline.until(
        "[...document.querySelectorAll('.dot')].every(dot => dot.getBoundingClientRect().right <= 390)"
    )
    roofline.picture("roofline-light-390")


def test_a_trace_without_counts_says_how_to_get_them(workbench: Workbench, bare_url: str) -> None:
    workbench.open(bare_url, "#pane=kernels&roofline=1")
    line = workbench.page.locator(".pane .nothing")
    line.wait_for()
    assert "record_shapes=True" in line.inner_text()
    assert workbench.page.locator(f"{_DOTS}, .table-tools").count() == 0
    workbench.click('[data-action="rows"]')
    workbench.page.locator(".table-tools").wait_for()
    assert workbench.page.locator('[data-action="roofline"]').count() == 0
