"""axe-core finds nothing to object to in any pane, in both themes, on wide and narrow windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench

_AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
_VIOLATIONS = """
async () => (await axe.run()).violations
  .map(one => `${one.id}: ${one.nodes.map(node => node.target.join(' ')).join(', ')}`)
"""


@pytest.fixture
def axe() -> str:
    if not _AXE.exists():
        pytest.skip("no axe-core; run npm --prefix web ci")
    return _AXE.read_text("utf-8")


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_panes_of_several_ranks_are_accessible(
    workbench: Workbench, several_url: str, axe: str, theme: str, width: int
) -> None:
    workbench.page.set_viewport_size({"width": width, "height": 900})
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(several_url, "#trace=dlrm_8rank_v100")
    workbench.page.evaluate(axe)
    for pane in ("collectives", "compare"):
        workbench.pane(pane)
        workbench.page.locator(".pane tbody tr").first.wait_for()
        assert workbench.page.evaluate(_VIOLATIONS) == [], pane


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pane_is_accessible(
    workbench: Workbench, resnet_url: str, axe: str, theme: str, width: int
) -> None:
    def violations() -> Any:
        workbench.settle()
        return workbench.page.evaluate(_VIOLATIONS)

    workbench.page.set_viewport_size({"width": width, "height": 900})
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(resnet_url)
    workbench.page.evaluate(axe)
    tabs = [tab.get_attribute("id") or "" for tab in workbench.page.get_by_role("tab").all()]
    for tab in tabs:
        workbench.pane(tab[4:])
        assert violations() == [], tab
    workbench.pane("kernels")
    workbench.click('[data-action="roofline"]')
    workbench.page.locator(".roofline .dot").first.wait_for()
    assert violations() == [], "roofline"
    workbench.pane("sql")
    workbench.click('[data-action="run"]')
    workbench.page.locator(".query-result").wait_for()
    assert violations() == [], "sql"
    workbench.page.locator("#search").fill("sgemm")
    workbench.page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()
    assert violations() == [], "search"
    workbench.page.locator("#search").press("Escape")
    workbench.click("#tab-overview")
    workbench.click('[data-stage="forward"]')
    workbench.page.locator(".details h2").wait_for()
    assert violations() == [], "details"
    start = workbench.ask("level?path=s8.0")["level"]["start_ns"]
    workbench.page.evaluate(f"location.hash = '#path=s8.0&area={start}-{start + 50_000_000}'")
    workbench.page.locator('.details [aria-label="Stages in the area"]').wait_for()
    assert violations() == [], "area"
