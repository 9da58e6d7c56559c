"""Pictures of every pane in both themes, kept for whoever reviews a change.

They go to `tests/browser/screenshots`. Nothing here is compared: a picture is to be looked at. What
must hold of each is that it was drawn without an error and that nothing hangs over its edge.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browsing import Workbench

_SIZES = {"wide": (1440, 900), "narrow": (1024, 768)}


def drill(bench: Workbench) -> None:
    bench.page.keyboard.press("g")
    bench.until("location.hash.split('/').length > 5")


def search(bench: Workbench) -> None:
    bench.click('[data-stage="forward"]')
    bench.page.keyboard.press("/")
    bench.page.keyboard.type("batch_norm")
    bench.page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()


def module(bench: Workbench) -> None:
    bench.pane("modules")
    bench.click('[data-key="layer3"] .twist')
    bench.click('[data-key="layer3"]')
    bench.until("location.hash.includes('subject=module')")


def hover(bench: Workbench) -> None:
    path = next(one["path"] for one in bench.operations("s5.0") if one["name"] == "backward")
    where = bench.bar(path)
    bench.page.mouse.move(where["x"], where["y"])
    bench.page.locator(".tooltip-name").wait_for()


def keys(bench: Workbench) -> None:
    bench.page.keyboard.press("?")
    bench.page.get_by_role("dialog").wait_for()


def table(bench: Workbench) -> None:
    bench.click('[data-stage="forward"]')
    bench.page.keyboard.press("t")
    bench.page.locator(".level-tables").wait_for()


def roofline(bench: Workbench) -> None:
    bench.pane("kernels")
    bench.click('[data-action="roofline"]')
    bench.page.locator(".roofline .dot").first.wait_for()
    bench.page.locator(".roofline-readout").scroll_into_view_if_needed()


_VIEWS: dict[str, Callable[[Workbench], None]] = {
    "start": lambda bench: None,
    "kernel": drill,
    "search": search,
    "module": module,
    "hover": hover,
    "keys": keys,
    "table": table,
    "roofline": roofline,
}


def finished(bench: Workbench) -> None:
    overhang = "document.documentElement.scrollWidth - innerWidth"
    assert bench.page.evaluate(overhang) <= 0


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_of_a_trace(
    workbench: Workbench, resnet_url: str, theme: str, size: str
) -> None:
    width, height = _SIZES[size]
    workbench.page.emulate_media(color_scheme=theme)
    workbench.page.set_viewport_size({"width": width, "height": height})
    for name, show in _VIEWS.items():
        workbench.open(resnet_url)
        workbench.page.locator(".verdict").wait_for()
        show(workbench)
        finished(workbench)
        workbench.picture(f"{name}-{theme}-{size}")
    workbench.open(resnet_url)
    for tab in workbench.page.get_by_role("tab").all():
        tab.click()
        finished(workbench)
        workbench.picture(f"pane-{(tab.get_attribute('id') or '')[4:]}-{theme}-{size}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ranks_and_source(workbench: Workbench, several_url: str, theme: str) -> None:
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(several_url, "#trace=dlrm_8rank_v100&every=1")
    finished(workbench)
    workbench.picture(f"ranks-{theme}-wide")
    workbench.open(several_url, "#trace=tiny&pane=source")
    workbench.page.locator(".source-table").wait_for()
    finished(workbench)
    workbench.picture(f"source-{theme}-wide")
