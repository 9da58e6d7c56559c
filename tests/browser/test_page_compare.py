"""The steps of two traces on one time axis, in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench
from violations import violations

_SIDES = ("before", "after")


@pytest.fixture
def ranks(workbench: Workbench, several_url: str) -> Workbench:
    """Two ranks of a job."""
    workbench.open(several_url, "#trace=dlrm_8rank_v100&path=s10.1&pane=compare")
    ranks = workbench.page.get_by_label("Compare with")
    ranks.select_option(label="another rank of this trace")
    workbench.page.get_by_label("Rank to compare with").select_option("7")
    workbench.until("location.hash.includes('7')")
    workbench.click('[data-part="steps"]')
    workbench.page.locator(".compared-steps canvas").first.wait_for()
    return workbench


def canvas(bench: Workbench, side: str) -> Any:
    return bench.page.locator(f'.compared-steps [data-side="{side}"] canvas')


def outline(bench: Workbench, side: str) -> Any:
    rank = bench.page.get_by_label("Rank", exact=True).input_value()
    return bench.ask("outline?rank=7" if side == "before" else f"outline?rank={rank}&step=10")


def where(bench: Workbench, side: str, stage: str) -> tuple[float, float]:
    """The middle of a stage on the CPU, px from the corner of its timeline."""
    found = {one: outline(bench, one) for one in _SIDES}
    columns = found[side]["timeline"]
    row = next(i for i, one in enumerate(columns["stage"]) if one == stage)
    assert found[side]["threads"][columns["thread"][row]]["name"] == "CPU"
    middle = columns["start_us"][row] + columns["duration_us"][row] / 2
    length = max(one["timeline"]["length_us"] for one in found.values())
    return canvas(bench, side).bounding_box()["width"] * middle / length, 7.0


def pixel(bench: Workbench, side: str, x: float, y: float) -> list[int]:
    return bench.page.evaluate(
        """([side, x, y]) => {
          const canvas = document.querySelector(`.compared-steps [data-side=${side}] canvas`);
          const scale = canvas.width / canvas.clientWidth;
          const copy = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
          copy.drawImage(canvas, -Math.round(x * scale), -Math.round(y * scale));
          return [...copy.getImageData(0, 0, 1, 1).data];
        }""",
        [side, x, y],
    )


def test_both_steps_have_one_axis_and_one_hue_for_a_stage(ranks: Workbench) -> None:
    boxes = [canvas(ranks, side).bounding_box() for side in _SIDES]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["width"] == boxes[1]["width"]
    colors = [pixel(ranks, side, *where(ranks, side, "forward")) for side in _SIDES]
    assert colors[0] == colors[1] != pixel(ranks, "after", *where(ranks, "after", "backward"))
    captions = ranks.page.locator(".compared-steps figcaption").all_inner_texts()
    assert captions[0].startswith("Before: rank 7, step 10")
    assert captions[1].startswith("Now: rank 1, step 10")


def test_a_stage_clicked_in_one_stands_out_in_both(ranks: Workbench) -> None:
    backward = {side: where(ranks, side, "backward") for side in _SIDES}
    plain = {side: pixel(ranks, side, *backward[side]) for side in _SIDES}
    x, y = where(ranks, "before", "forward")
    canvas(ranks, "before").click(position={"x": x, "y": y})
    said = ranks.page.locator(".stage-times")
    said.wait_for()
    assert said.inner_text().startswith("forward")
    for side in _SIDES:
        assert pixel(ranks, side, *backward[side]) != plain[side]
    assert ranks.page.locator(".compared-steps .chip[aria-pressed=true]").inner_text().strip() == "forward"
    said.get_by_role("button").click()
    ranks.until("document.querySelector('.details h2')?.innerText === 'forward'")


def test_both_are_zoomed_together_and_chosen_with_keys(ranks: Workbench) -> None:
    both = ranks.page.locator(".compared-steps .whatif-timelines")
    first = ranks.page.locator(".compared-steps .whatif-axis span").first
    assert first.inner_text() == "0"
    ends = {side: pixel(ranks, side, *where(ranks, side, "optimizer")) for side in _SIDES}
    both.press("+")
    both.press("+")
    ranks.until("document.querySelectorAll('.compared-steps .whatif-axis span').length > 0")
    assert all(pixel(ranks, side, *where(ranks, side, "optimizer")) != ends[side] for side in _SIDES)
    both.press("0")
    both.press("ArrowDown")
    both.press("Enter")
    ranks.page.locator(".stage-times").wait_for()


@pytest.fixture(scope="module")
def file_of_ranks(home: Path, traces: Path) -> str:
    """`stepscope report --html` of a job of eight ranks."""
    return written(home / "job.html", traces / "dlrm_8rank_v100")


@pytest.fixture(scope="module")
def file_of_one_rank(home: Path, capture: Path) -> str:
    return written(home / "one.html", capture)


@pytest.fixture(scope="module")
def file_of_two_traces(home: Path, traces: Path, capture: Path) -> str:
    return written(home / "two.html", capture, "--compare", str(traces / "dlrm_8rank_v100"))


def written(out: Path, trace: Path, *options: str) -> str:
    command = [sys.executable, "-m", "stepscope", "report", str(trace), "--html", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return out.as_uri()


def test_a_file_compares_any_two_ranks_as_the_server_does(ranks: Workbench, file_of_ranks: str) -> None:
    file = Workbench(ranks.context)
    file.open(file_of_ranks, f"#path={ranks.path}&pane=compare&against_rank=7")
    said, drawn = ".compare-verdict", ".compared-steps figcaption"
    file.page.locator(said).wait_for()
    assert file.page.inner_text(said) == ranks.page.inner_text(said)
    file.click('[data-part="steps"]')
    assert file.page.locator(drawn).all_inner_texts() == ranks.page.locator(drawn).all_inner_texts()
    file.page.get_by_label("Rank", exact=True).select_option("3")
    file.page.get_by_label("Rank to compare with").select_option("5")
    file.page.locator(drawn, has_text="rank 5").wait_for()
    assert file.page.locator(drawn).last.inner_text().startswith("Now: rank 3")
    assert file.problems == []


def test_a_file_compares_another_trace_as_the_server_does(
    workbench: Workbench, several_url: str, file_of_two_traces: str
) -> None:
    compared = "#trace=tiny&pane=compare&against=dlrm_8rank_v100&against_rank=3"
    workbench.open(several_url, compared)
    file = Workbench(workbench.context)
    file.open(file_of_two_traces, compared.replace("trace=tiny&", ""))
    said, drawn = ".compare-verdict", ".compared-steps figcaption"
    file.page.locator(said).wait_for()
    assert file.page.inner_text(said) == workbench.page.inner_text(said)
    for bench in (file, workbench):
        bench.click('[data-part="steps"]')
    assert file.page.locator(drawn).all_inner_texts()[0].startswith("Before: dlrm_8rank_v100")
    file.pane("flame")
    file.page.get_by_label("Compare with").select_option(label="dlrm_8rank_v100")
    file.page.locator(".flame canvas, .pane canvas").first.wait_for()
    assert file.page.locator(".pane .error-line").count() == 0
    assert file.page.get_by_label("Trace", exact=True).count() == 0  # it does not open
    assert file.problems == []


def test_a_file_of_one_rank_says_what_compares(workbench: Workbench, file_of_one_rank: str) -> None:
    workbench.open(file_of_one_rank, "#pane=compare")
    said = workbench.page.locator('[data-missing="compare"]').inner_text()
    assert "stepscope view A B" in said
    assert "stepscope diff A B" in said
    assert "--compare A" in said


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_is_accessible_and_fits(ranks: Workbench, theme: str, width: int) -> None:
    ranks.in_theme(theme)
    ranks.resize(width, 844)
    ranks.page.locator(".compared-steps .chip", has_text="forward").click()
    assert violations(ranks.page) == []
    ranks.until_it_fits()
    ranks.picture(f"compared-steps-{theme}-{width}")
