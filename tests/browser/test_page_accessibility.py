"""axe-core finds nothing to object to in any pane, in both themes, on wide and narrow windows."""

from __future__ import annotations

import pytest
from browsing import Workbench
from violations import violations


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_panes_of_several_ranks_are_accessible(
    workbench: Workbench, several_url: str, theme: str, width: int
) -> None:
    workbench.page.set_viewport_size({"width": width, "height": 900})
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(several_url, "#trace=dlrm_8rank_v100")
    for pane in ("collectives", "compare"):
        workbench.pane(pane)
        workbench.page.locator(".pane tbody tr").first.wait_for()
        assert violations(workbench.page) == [], pane


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pane_is_accessible(
    workbench: Workbench, resnet_url: str, theme: str, width: int
) -> None:
    workbench.page.set_viewport_size({"width": width, "height": 900})
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(resnet_url)
    tabs = [tab.get_attribute("id") or "" for tab in workbench.page.get_by_role("tab").all()]
    for tab in tabs:
        workbench.pane(tab[4:])
        assert violations(workbench.page) == [], tab
    workbench.pane("kernels")
    workbench.click('[data-action="roofline"]')
    workbench.page.locator(".roofline .dot").first.wait_for()
    assert violations(workbench.page) == [], "roofline"
    workbench.pane("sql")
    workbench.click('[data-action="run"]')
    workbench.page.locator(".query-result").wait_for()
    assert violations(workbench.page) == [], "sql"
    workbench.page.locator("#search").fill("sgemm")
    workbench.page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()
    assert violations(workbench.page) == [], "search"
    workbench.page.locator("#search").press("Escape")
    workbench.click("#tab-overview")
    workbench.click('[data-stage="forward"]')
    workbench.page.locator(".details h2").wait_for()
    assert violations(workbench.page) == [], "details"
    start = workbench.ask("level?path=s5.0")["level"]["start_ns"]
    workbench.page.evaluate(f"location.hash = '#path=s5.0&area={start}-{start + 50_000_000}'")
    workbench.page.locator('.details [aria-label="Stages in the area"]').wait_for()
    assert violations(workbench.page) == [], "area"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_opens_above_the_panes_is_accessible(
    workbench: Workbench, resnet_url: str, theme: str
) -> None:
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(resnet_url)
    press = workbench.page.keyboard.press
    press("?")
    workbench.page.locator("dialog[open]").wait_for()
    assert violations(workbench.page) == [], "help"
    press("Escape")
    press("t")
    workbench.page.locator(".timeline table").first.wait_for()
    assert violations(workbench.page) == [], "table"
    press("t")
    workbench.pane("whatif")
    workbench.click('[data-change="amp"] [role=switch]')
    workbench.until("document.querySelector('.whatif-sentence')?.innerText.includes('would take')")
    assert violations(workbench.page) == [], "a predicted step"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_a_stale_link_shows_is_accessible(
    workbench: Workbench, resnet_url: str, theme: str
) -> None:
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(resnet_url, "#path=s99.0/t1", shown=".error-line")
    workbench.page.get_by_role("button", name="Go to the trace").wait_for()
    assert violations(workbench.page) == []
    workbench.problems.clear()  # the refusal of the stale path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("trace", ["rank0_act_checkpoint", "tiny"])
def test_panes_of_other_traces_are_accessible(
    workbench: Workbench, several_url: str, trace: str, theme: str
) -> None:
    workbench.page.emulate_media(color_scheme=theme)
    workbench.open(several_url, f"#trace={trace}")
    for tab in workbench.page.get_by_role("tab").all():
        name = tab.get_attribute("id") or ""
        workbench.pane(name[4:])
        assert violations(workbench.page) == [], name
