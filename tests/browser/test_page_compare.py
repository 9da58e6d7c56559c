"""The steps of two traces on one time axis, in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browsing import Workbench
from violations import violations


@pytest.fixture
def ranks(workbench: Workbench, several_url: str) -> Workbench:
    """Two ranks of a job, one above the other."""
    workbench.open(several_url, "#trace=dlrm_8rank_v100&path=s10.1&pane=compare")
    workbench.page.get_by_role("button", name="Other rank", exact=True).click()
    workbench.page.get_by_label("Rank below").select_option("7")
    workbench.until("location.hash.includes('against_rank=7')")
    workbench.page.locator(".pair-title", has_text="rank 7").wait_for()
    return workbench


def test_both_steps_have_one_axis_and_the_parts_of_the_same_pair(ranks: Workbench) -> None:
    assert ranks.page.inner_text(".pair-title").startswith("rank 1 ")
    rows = ranks.page.locator(".pair-row canvas")
    assert len({one.bounding_box()["width"] for one in rows.all()}) == 1
    names = ranks.page.locator(".pair-row .row-which").all_inner_texts()
    assert names == ["stages", "operators", "work", "communication", "idle"]
    assert ranks.page.get_by_label("Rank to compare with").input_value() == "7"


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
    said = ".compare-verdict"
    file.page.locator(said).wait_for()
    assert file.page.inner_text(said) == ranks.page.inner_text(said)
    file.open(file_of_ranks, "#pane=compare&over=other")
    file.page.locator(".pair-row").first.wait_for()
    shown = file.page.get_by_label("Rank", exact=True).input_value()
    assert file.page.inner_text(".pair-title").startswith(f"rank {shown} ")
    assert file.problems == []


def test_a_file_compares_another_trace_as_the_server_does(
    workbench: Workbench, several_url: str, file_of_two_traces: str
) -> None:
    compared = "#trace=tiny&pane=compare&against=dlrm_8rank_v100&over=other"
    workbench.open(several_url, compared)
    file = Workbench(workbench.context)
    file.open(file_of_two_traces, compared.replace("trace=tiny&", ""))
    said = ".compare-verdict"
    file.page.locator(said).wait_for()
    assert file.page.inner_text(said) == workbench.page.inner_text(said)
    for page in (file.page, workbench.page):  # both begin at the step nearest to the median
        page.locator(".pair-title", has_text="dlrm_8rank_v100").wait_for()
    assert file.page.inner_text(".pair-title") == workbench.page.inner_text(".pair-title")
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
    assert violations(ranks.page) == []
    ranks.until_it_fits()
    ranks.picture(f"pair-ranks-{theme}-{width}")
