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
    bench.page.mouse.move(0, 0)
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
    "kernel": drill,
    "search": search,
    "module": module,
    "keys": keys,
    "table": table,
    "roofline": roofline,
}


def photograph(bench: Workbench, view: str, show: Callable[[Workbench], None] = lambda bench: None) -> None:
    """In both themes and sizes; `show` what a change of these has closed."""
    for size in _SIZES:
        for theme in ("light", "dark"):
            show_in(bench, theme, size)
            show(bench)
            picture(bench, f"{view}-{theme}-{size}")


def show_in(bench: Workbench, theme: str, size: str) -> None:
    width, height = _SIZES[size]
    bench.in_theme(theme)
    bench.resize(width, height)


def picture(bench: Workbench, name: str) -> None:
    bench.until_it_fits()
    bench.picture(name)


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_in_every_theme_and_size(
    workbench: Workbench, resnet_url: str, theme: str, size: str
) -> None:
    show_in(workbench, theme, size)
    workbench.open(resnet_url)
    workbench.page.locator(".verdict").wait_for()
    picture(workbench, f"start-{theme}-{size}")


@pytest.mark.parametrize("view", _VIEWS)
def test_every_view_of_a_trace(workbench: Workbench, resnet_url: str, view: str) -> None:
    workbench.open(resnet_url)
    workbench.page.locator(".verdict").wait_for()
    _VIEWS[view](workbench)
    photograph(workbench, view)


def test_what_is_below_the_pointer(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    photograph(workbench, "hover", hover)


def test_every_pane_of_a_trace(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    for tab in workbench.page.get_by_role("tab").all():
        tab.click()
        photograph(workbench, f"pane-{(tab.get_attribute('id') or '')[4:]}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ranks_and_source(workbench: Workbench, several_url: str, theme: str) -> None:
    workbench.in_theme(theme)
    workbench.open(several_url, "#trace=dlrm_8rank_v100&every=1")
    picture(workbench, f"ranks-{theme}-wide")
    workbench.open(several_url, "#trace=tiny&pane=source")
    workbench.page.locator(".source-table").wait_for()
    picture(workbench, f"source-{theme}-wide")
