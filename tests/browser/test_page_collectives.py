"""Collectives by rank, in a browser: who arrives last at each, and who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import Workbench
from violations import violations

import stepscope


@pytest.fixture
def matrix(workbench: Workbench, several_url: str) -> Workbench:
    workbench.open(several_url, "#trace=dlrm_8rank_v100&pane=collectives")
    workbench.click('[data-action="by-rank"]')
    workbench.page.locator(".arrival-map canvas").wait_for()
    return workbench


def arrivals(traces: Path) -> list[dict[str, int]]:
    """Of each collective the first rank with the shortest and the first with the longest call."""
    calls = stepscope.open(traces / "dlrm_8rank_v100").query(
        "with calls as (select rank, events.name, start_ns, duration_ns, row_number() over "
        "(partition by rank, events.name order by start_ns) as nth from events join tracks on "
        "tracks.id = track where category = 'communication' and device >= 0) "
        "select first(rank order by duration_ns, rank) as last, "
        "first(rank order by duration_ns desc, rank) as waits "
        "from calls group by name, nth order by min(start_ns)"
    )
    return calls.to_pylist()


def test_each_collective_names_who_is_late_and_who_waits(matrix: Workbench, traces: Path) -> None:
    rows = matrix.page.locator(".pane tbody tr")
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    named = [{"last": int(row[2].split()[1]), "waits": int(row[4].split()[1])} for row in cells]
    assert named == arrivals(traces)
    assert all(one["last"] != one["waits"] for one in named)
    said = matrix.page.inner_text(".arrivals > span")
    assert "Rank 7 arrives latest" in said
    assert "Rank 1 waits longest" in said


def test_a_row_leads_to_the_late_call_and_the_map_to_a_rank(matrix: Workbench) -> None:
    late = matrix.page.locator(".pane tbody tr").nth(5).locator("td").nth(2).inner_text()
    matrix.page.locator(".pane tbody tr").nth(5).click()
    matrix.until("document.querySelector('.details h2')?.innerText.includes('nccl')")
    shown = matrix.page.get_by_label("Rank", exact=True)
    assert late == f"rank {shown.input_value()}"
    canvas = matrix.page.locator(".arrival-map canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 2.5 / 8, "y": box["height"] / 2})
    matrix.until("location.hash.includes('path=s10.2')")
    canvas.press("ArrowRight")
    matrix.until("location.hash.includes('path=s10.3')")
    other = Workbench(matrix.context)
    other.open(matrix.base, f"#{matrix.fragment}", shown=".arrival-map canvas")
    assert other.page.get_by_label("Rank", exact=True).input_value() == "3"
    assert other.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_is_accessible_and_fits(matrix: Workbench, theme: str, width: int) -> None:
    matrix.in_theme(theme)
    matrix.resize(width, 844)
    assert violations(matrix.page) == []
    matrix.until_it_fits()
    matrix.picture(f"collectives-by-rank-{theme}-{width}")
