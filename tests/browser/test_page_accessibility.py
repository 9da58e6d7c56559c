"""axe-core finds nothing to object to in any pane, in both themes, on wide and narrow windows."""

from __future__ import annotations

import pytest
from browsing import Workbench
from violations import violations


def objections(bench: Workbench) -> dict[str, list[str]]:
    """What axe-core objects to in what is on screen, by theme; it is left in the other theme."""
    dark = bench.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    found = {}
    for theme in ("dark", "light") if dark else ("light", "dark"):
        bench.in_theme(theme)
        found[theme] = violations(bench.page, colors_only=bool(found))
    return {theme: broken for theme, broken in found.items() if broken}


@pytest.mark.parametrize("width", [390, 1440])
def test_panes_of_several_ranks_are_accessible(workbench: Workbench, several_url: str, width: int) -> None:
    workbench.resize(width, 900)
    workbench.open(several_url, "#trace=dlrm_8rank_v100")
    for pane in ("collectives", "compare"):
        workbench.pane(pane)
        workbench.page.locator(".pane tbody tr").first.wait_for()
        assert objections(workbench) == {}, pane


@pytest.mark.parametrize("width", [390, 1440])
def test_every_pane_is_accessible(workbench: Workbench, resnet_url: str, width: int) -> None:
    workbench.resize(width, 900)
    workbench.open(resnet_url)
    tabs = [tab.get_attribute("id") or "" for tab in workbench.page.get_by_role("tab").all()]
    for tab in tabs:
        workbench.pane(tab[4:])
        assert objections(workbench) == {}, tab
    workbench.pane("kernels")
    workbench.click('[data-action="roofline"]')
    workbench.page.locator(".roofline .dot").first.wait_for()
    assert objections(workbench) == {}, "roofline"
    workbench.pane("sql")
    workbench.click('[data-action="run"]')
    workbench.page.locator(".query-result").wait_for()
    assert objections(workbench) == {}, "sql"
    workbench.page.locator("#search").fill("sgemm")
    workbench.page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()
    assert objections(workbench) == {}, "search"
    workbench.page.locator("#search").press("Escape")
    workbench.click("#tab-overview")
    workbench.click('[data-stage="forward"]')
    workbench.page.locator(".details h2").wait_for()
    assert objections(workbench) == {}, "details"
    workbench.page.keyboard.press("g")
    workbench.page.locator(".details .full-name").wait_for()
    assert objections(workbench) == {}, "details of a kernel with a name of many lines"
    start = workbench.ask("level?path=s5.0")["level"]["start_ns"]
    workbench.page.evaluate(
        f"location.hash = '#path=s5.0&marker={start + 9}&area={start}-{start + 50_000_000}'"
    )
    workbench.page.locator('.details [aria-label="Operators in the area"]').wait_for()
    assert objections(workbench) == {}, "area"


def test_what_opens_above_the_panes_is_accessible(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    press = workbench.page.keyboard.press
    press("?")
    workbench.page.locator("dialog[open]").wait_for()
    assert objections(workbench) == {}, "help"
    press("Escape")
    press("t")
    workbench.page.locator(".timeline table").first.wait_for()
    assert objections(workbench) == {}, "table"
    press("t")
    workbench.pane("whatif")
    workbench.click('[data-change="amp"] [role=switch]')
    workbench.until("document.querySelector('.whatif-sentence')?.innerText.includes('would take')")
    assert objections(workbench) == {}, "a predicted step"
    workbench.click('button:text-is("Predicted timeline")')
    workbench.until("location.hash.includes('over=predicted')")
    press("Control+k")
    workbench.page.keyboard.type("timeline meas")
    assert objections(workbench) == {}, "palette"
    press("Enter")
    workbench.until("!location.hash.includes('over=')")


def test_what_a_stale_link_shows_is_accessible(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#path=s99.0/t1", shown=".error-line")
    workbench.page.get_by_role("button", name="Go to the trace").wait_for()
    assert objections(workbench) == {}
    workbench.problems.clear()  # the refusal of the stale path


@pytest.mark.parametrize("trace", ["rank0_act_checkpoint", "tiny"])
def test_panes_of_other_traces_are_accessible(workbench: Workbench, several_url: str, trace: str) -> None:
    workbench.open(several_url, f"#trace={trace}")
    for tab in workbench.page.get_by_role("tab").all():
        name = tab.get_attribute("id") or ""
        workbench.pane(name[4:])
        assert objections(workbench) == {}, name
