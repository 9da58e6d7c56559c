"""The what-if pane in a browser: changes on and off, their order and parameters, two timelines."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from browsing import Workbench


def shown(workbench: Workbench, url: str, changes: str = "") -> None:
    workbench.open(url, f"#pane=whatif&changes={quote(changes)}")
    workbench.page.locator(".whatif-change").first.wait_for()
    workbench.page.locator(".whatif-timelines").wait_for()


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


def test_both_timelines_are_on_one_scale_and_walked_by_keys(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url, "dataloader")
    boxes = [
        workbench.page.locator(f'[data-side="{side}"] canvas').bounding_box() for side in ("before", "after")
    ]
    assert boxes[0]["width"] == boxes[1]["width"]
    assert boxes[0]["height"] == boxes[1]["height"] > 0
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    timelines = workbench.page.locator(".whatif-timelines")
    timelines.focus()
    spot = workbench.page.locator(".whatif-spot")
    timelines.press("ArrowDown")
    workbench.page.locator(".whatif-spot", has_text="Measured, ").wait_for()
    path = workbench.path
    for _ in range(20):
        timelines.press("ArrowDown")
    workbench.page.locator(".whatif-spot", has_text="Predicted, ").wait_for()
    assert "stream 7" in spot.inner_text()
    assert workbench.path == path
    workbench.picture("whatif-light")
    workbench.in_theme("dark")
    workbench.until("document.documentElement.dataset.theme === 'dark'")
    workbench.picture("whatif-dark")


def ticks(workbench: Workbench) -> list[str]:
    return workbench.page.locator(".whatif-axis span").all_inner_texts()


def test_both_timelines_are_zoomed_together(workbench: Workbench, resnet_url: str) -> None:
    shown(workbench, resnet_url, "dataloader")
    whole = ticks(workbench)
    assert whole[0] == "0"
    canvas = workbench.page.locator('[data-side="before"] canvas')
    box = canvas.bounding_box()
    workbench.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8)
    workbench.page.mouse.down()
    workbench.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 8, steps=4)
    workbench.page.mouse.up()
    workbench.until("document.querySelector('.whatif-axis span').innerText !== '0'")
    near = ticks(workbench)
    workbench.picture("whatif-zoomed")
    canvas.dblclick()
    workbench.until("document.querySelector('.whatif-axis span').innerText === '0'")
    assert ticks(workbench) == whole
    timelines = workbench.page.locator(".whatif-timelines")
    timelines.press("+")
    workbench.until("document.querySelector('.whatif-axis span').innerText !== '0'")
    assert ticks(workbench) not in (whole, near)
    timelines.press("0")
    workbench.until("document.querySelector('.whatif-axis span').innerText === '0'")
    path = workbench.path
    canvas.hover(position={"x": 30, "y": 8})
    workbench.page.keyboard.down("Control")
    workbench.page.mouse.wheel(0, -200)
    workbench.page.keyboard.up("Control")
    workbench.page.get_by_role("button", name="Further").click()
    assert workbench.path == path


def test_one_rank_alone_or_all_together(workbench: Workbench, several_url: str) -> None:
    workbench.open(several_url, "#trace=dlrm_8rank_v100&pane=whatif&changes=bandwidth")
    workbench.page.locator(".whatif-timelines").wait_for()
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
