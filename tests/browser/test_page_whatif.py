"""The what-if pane in a browser: changes on and off, their order and parameters, the predicted timeline."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from browsing import Workbench


def shown(workbench: Workbench, url: str, changes: str = "") -> None:
    workbench.open(url, f"#pane=whatif&changes={quote(changes)}")
    workbench.page.locator(".whatif-change").first.wait_for()
    workbench.page.locator(".whatif-sentence").wait_for()


def switch(workbench: Workbench, change: str) -> None:
    workbench.page.locator(f'[data-change="{change}"] [role=switch]').click()


def sentence(workbench: Workbench, words: str) -> None:
    workbench.page.locator(".whatif-sentence", has_text=words).wait_for()


def predicted(workbench: Workbench, changes: str) -> dict[str, Any]:
    return workbench.ask(f"whatif?changes={quote(changes)}")["answer"]


def test_changes_are_switched_on_and_off(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url)
    sentence(workbench, "A step takes 178\u202fms.")
    switch(workbench, "dataloader")
    speedup = predicted(workbench, "dataloader")["speedup"]
    assert speedup > 1.4
    sentence(workbench, f"{speedup:.2f}× as fast")
    switch(workbench, "dataloader")
    sentence(workbench, "A step takes 178\u202fms.")
    assert "changes" not in workbench.said


def test_changes_compose_in_an_order_that_can_be_changed(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url, "dataloader")
    switch(workbench, "faster_gpu")
    workbench.until("location.hash.includes('dataloader%0Afaster_gpu')")
    both = predicted(workbench, "dataloader\nfaster_gpu")
    sentence(workbench, f"{both['speedup']:.2f}× as fast")
    workbench.page.get_by_label("faster_gpu earlier").click()
    workbench.until("location.hash.includes('faster_gpu%0Adataloader')")
    listed = workbench.page.locator("ol .whatif-change")
    assert [one.get_attribute("data-change") for one in listed.all()] == ["faster_gpu", "dataloader"]


def test_parameters_have_their_defaults_and_can_be_changed(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url, "ddp")
    workers = workbench.page.locator('[data-change="ddp"]').get_by_label("workers")
    assert workers.input_value() == "2"
    workers.fill("16")
    workers.press("Enter")
    workbench.until("decodeURIComponent(location.hash).includes('changes=ddp:workers=16')")
    sentence(workbench, f"{predicted(workbench, 'ddp:workers=16')['speedup']:.2f}×")


def test_what_does_not_apply_says_why(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url)
    grey = workbench.page.locator('.whatif-not[data-change="dgc"]')
    assert "these steps have no all-reduces; put ddp first" in grey.inner_text()
    switch(workbench, "scale")
    on = workbench.page.locator('.whatif-on[data-change="scale"]')
    on.get_by_text("Ignored until it has select and factor.").wait_for()
    sentence(workbench, "A step takes")  # as without it


def test_what_does_not_apply_behind_others_says_so_in_place_of_the_prediction(
    workbench: Workbench, resnet_url: str
) -> None:
    workbench.open(resnet_url, "#pane=whatif&changes=dgc")
    refusal = "dgc: these steps have no all-reduces; put ddp first"
    workbench.page.locator(".whatif-answer .error-line", has_text=refusal).wait_for()
    switch(workbench, "dgc")
    sentence(workbench, "A step takes")


def row(workbench: Workbench, number: int = 0) -> Any:
    return workbench.page.locator(".pair-row canvas").nth(number)


def test_the_prediction_lies_below_the_step_in_the_timeline(workbench: Workbench, resnet_url: str) -> None:
    """One click, and the lanes of both sides have the scale of the axis."""
    workbench.open(resnet_url, "#changes=dataloader")
    workbench.page.get_by_role("button", name="Predicted", exact=True).click()
    row(workbench).wait_for()
    step = workbench.ask("overview")["start"].split(".")[0][1:]
    pair = workbench.ask(f"pair?changes=dataloader&rank=0&step={step}")
    title = workbench.page.inner_text(".pair-title")
    assert title.startswith("measured ")
    assert " above predicted " in title
    assert pair["after"]["length_us"] < pair["before"]["length_us"]
    boxes = [row(workbench, number).bounding_box() for number in range(2)]
    assert boxes[0]["width"] == boxes[1]["width"]
    workbench.picture("pair-predicted-light")
    workbench.in_theme("dark")
    workbench.until("document.documentElement.dataset.theme === 'dark'")
    workbench.picture("pair-predicted-dark")


def test_pieces_are_walked_by_keys_and_have_their_details(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#changes=dataloader&over=predicted")
    row(workbench).wait_for()
    path = workbench.path
    workbench.page.locator(".pair").press("ArrowRight")
    said = workbench.page.locator(".pair [role=status]")
    workbench.until("document.querySelector('.pair [role=status]').innerText.startsWith('measured')")
    workbench.page.locator(".pair").press("ArrowDown")
    workbench.until("document.querySelector('.pair [role=status]').innerText.startsWith('predicted')")
    assert "on, " in said.inner_text()
    workbench.page.locator(".details h2").wait_for()
    assert workbench.path == path
    workbench.page.get_by_role("button", name="Measured", exact=True).click()
    workbench.page.locator(".tracks").wait_for()
    assert workbench.page.locator(".pair").count() == 0


def test_the_largest_difference_is_zoomed_to(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url, "#changes=faster_gpu&over=predicted")
    row(workbench).wait_for()
    before = workbench.page.get_attribute(".stack", "data-to")
    workbench.page.get_by_role("button", name="Largest", exact=True).click()
    workbench.until(f"document.querySelector('.stack').dataset.to !== '{before}'")
    workbench.until("document.querySelector('.pair [role=status]').innerText.includes('change')")


def test_one_rank_alone_or_all_together(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#trace=dlrm_8rank_v100&pane=whatif&changes=bandwidth")
    workbench.page.locator(".whatif-sentence").wait_for()
    together = predicted(workbench, "bandwidth")
    sentence(workbench, "as fast")
    rank = workbench.page.get_by_label("Rank", exact=True).input_value()
    workbench.page.locator(".whatif-ranks select").select_option("one")
    alone = workbench.ask(f"whatif?changes=bandwidth&rank={rank}")["answer"]
    assert alone["measured_step_ms"] != together["measured_step_ms"]
    alike = "other ranks change in the same way"
    workbench.page.locator(".whatif-assumptions", has_text=alike).wait_for()


def test_what_is_being_typed_stays_when_an_answer_comes(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url, "ddp")
    workbench.page.evaluate(
        """() => {
          document.querySelector('[data-change="dataloader"] [role=switch]').click();
          const field = document.querySelector('[data-change="ddp"] input[type=number]');
          field.value = "16";
          field.dispatchEvent(new Event("input", {bubbles: true}));
        }"""
    )
    assert "dataloader" in workbench.said["changes"]
    workers = workbench.page.locator('[data-change="ddp"]').get_by_label("workers")
    assert workers.input_value() == "16"
