"""The findings pane: the worst first, its evidence marked everywhere, its change tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Workbench
from patched import CALL, WHERE, write_patched_capture
from served_page import serving


def test_findings_are_listed_with_the_worst_first(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    workbench.pane("findings")
    cards = workbench.page.locator(".finding")
    cards.first.wait_for()
    told = workbench.ask("findings")["findings"]
    assert [card.get_attribute("data-rule") for card in cards.all()] == [one["rule"] for one in told]
    assert told[0]["rule"] == "input_bound"
    first = cards.first.inner_text()
    assert told[0]["what"] in first
    assert told[0]["advice"] in first
    assert "what-if dataloader" in first
    workbench.picture("findings-light")
    workbench.in_theme("dark")
    workbench.picture("findings-dark")


def test_a_finding_is_marked_everywhere(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    workbench.pane("findings")
    workbench.click('[data-rule="optimizer_loop"] .finding-head')
    workbench.until("location.hash.includes('subject=finding')")
    number = workbench.said["subject"].partition(":")[2]
    expected = workbench.ask(f"select?finding={number}&path={workbench.path}")
    workbench.until(f"location.hash.includes('chosen={expected['target']['path']}')")
    assert workbench.page.locator(".finding-head[aria-pressed=true]").count() == 1
    workbench.pane("kernels")
    rows = workbench.page.locator(".pane tbody tr.marked")
    rows.first.wait_for()
    shorts = {row["name"]: row["short"] for row in workbench.ask("kernels")["rows"]}
    marked = {row.split("\t")[0].strip() for row in rows.all_inner_texts()}
    assert marked == {shorts[name] for name in expected["kernels"]}


def test_one_row_of_its_evidence_and_the_change_to_try(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    workbench.pane("findings")
    card = '[data-rule="optimizer_loop"]'
    workbench.page.locator(f"{card} .evidence button").nth(1).click()
    workbench.until("/subject=finding%3A\\d+\\.1(&|$)/.test(location.hash)")
    workbench.click(f"{card} .try-it")
    workbench.until("location.hash.includes('changes=fused_optimizer')")
    workbench.page.locator('.pane[data-pane="whatif"]').wait_for()
    assert workbench.said["changes"] == "fused_optimizer"


@pytest.fixture(scope="module")
def patched_url(home: Path) -> Iterator[str]:
    with serving(home, str(write_patched_capture(home / "patched.stepscope"))) as url:
        yield url


def test_the_patch_of_a_finding_is_shown_and_copied(workbench: Workbench, patched_url: str) -> None:
    workbench.open(patched_url)
    workbench.pane("findings")
    patch = workbench.page.locator('[data-rule="optimizer_loop"] .patch')
    after = CALL.replace("foreach=False", "fused=True")
    lines = [f"{WHERE[0]}:{WHERE[1]}", f"- optimizer = {CALL}", f"+ optimizer = {after}"]
    assert patch.locator("code").all_inner_texts()[0] == lines[0]
    assert patch.locator("pre").inner_text().split("\n")[:2] == lines[1:]
    workbench.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    patch.get_by_role("button").click()
    patch.get_by_text("Copied").wait_for()
    assert workbench.page.evaluate("navigator.clipboard.readText()") == "\n".join(lines)
    workbench.picture("findings-patch-light")
    workbench.in_theme("dark")
    workbench.picture("findings-patch-dark")


_ROOM = """
() => {
  const box = document.querySelector('.dock').getBoundingClientRect();
  const text = document.querySelector('.finding-what')?.getBoundingClientRect();
  return {top: box.top, bottom: box.bottom, text: text?.width ?? 0};
}
"""


def test_on_a_phone_a_link_leads_to_a_pane_in_sight(workbench: Workbench, resnet_url: str) -> None:
    workbench.resize(390, 844)
    workbench.open(resnet_url)
    more = workbench.page.locator(".headline-actions .link")
    more.wait_for()
    more.click()
    workbench.page.locator(".finding-what").first.wait_for()
    workbench.until(f"({_ROOM})().bottom <= 844.5")
    assert workbench.page.evaluate(_ROOM)["text"] > 300  # a sentence has the width of the page
    header = workbench.page.locator(".header")
    rows = header.evaluate("one => one.offsetHeight")
    header.locator(".trace-name").evaluate("one => one.textContent = 'rank0_activation_checkpoint.json.gz'")
    assert header.evaluate("one => one.offsetHeight") == rows  # a long name makes no third row
