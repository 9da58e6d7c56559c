"""The page about a whole job: 1,024 ranks in one file, and a small job with its traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench
from violations import violations

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from stepscope.faces.page.job_answer import job_answer, job_page
from stepscope.models.ranks import Sketch
from stepscope.models.ranks.job import Job, report_of
from stepscope.models.ranks.map_ranks import RankResult

_ROOT = Path(__file__).parents[2]
_SLOW = range(840, 848)  # all of node-105


def _sketch(rank: int) -> Sketch:
    """A rank of a job in which one machine computes 25 % longer."""
    factor = 1.25 if rank in _SLOW else 1 + rank % 7 / 1000
    work = {"forward": 20.0 * factor, "backward": 40.0 * factor, "optimizer": 5.0}
    steps = list(range(20))
    return Sketch(
        rank=rank,
        node=f"node-{rank // 8}",
        device="V100",
        steps=steps,
        length=[82.0] * len(steps),
        work={name: [ms] * len(steps) for name, ms in work.items()},
        waiting=[82.0 - sum(work.values())] * len(steps),
        has_device=True,
        kernels={"gemm": (3.0, factor)},
    )


@pytest.fixture(scope="module")
def large_job(tmp_path_factory: pytest.TempPathFactory) -> str:
    sketches = [_sketch(rank) for rank in range(1024)]
    job = Job.of(sketches)
    results = [RankResult(f"/jobs/{one.node}/rank{one.rank}.json", one) for one in sketches]
    results.append(RankResult("/jobs/cut.json", None, "/jobs/cut.json: ends in the middle"))
    page = tmp_path_factory.mktemp("ranks") / "job.html"
    page.write_text(job_page(job_answer("big-run", job, report_of(job), results)))
    return page.as_uri()


def _write_rank(folder: Path, rank: int) -> None:
    """Two steps of a rank on a CPU; rank 5 takes longer for the forward pass."""
    forward = 9_000 if rank == 5 else 3_000 + rank
    events: list[dict[str, Any]] = []
    for step in range(4):
        start = 20_000 * step
        parts = (
            (f"ProfilerStep#{step}", "user_annotation", 0, 15_000),
            ("forward", "user_annotation", 100, forward),
            ("aten::mm", "cpu_op", 150, forward - 100),
            ("Optimizer.step#SGD.step", "user_annotation", 10_000, 1_000),
            ("aten::add_", "cpu_op", 10_100, 800),
        )
        events += [
            {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": start + at, "dur": length}
            for name, cat, at, length in parts
        ]
    file = folder / f"node-{rank // 4}" / f"rank{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    distributed = {"rank": rank, "world_size": 8}
    file.write_text(json.dumps({"traceEvents": events, "distributedInfo": distributed}))


@pytest.fixture(scope="module")
def small_job_url(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("job") / "run7"
    for rank in range(8):
        _write_rank(folder, rank)
    environment = os.environ | {"STEPSCOPE_CACHE": str(home / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "stepscope", "ranks", str(folder), "--view", "--no-browser"]
    with subprocess.Popen(command, cwd=_ROOT, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        process.terminate()


def _open(workbench: Workbench, url: str) -> Any:
    workbench.open(url, shown=".job .heat canvas")
    return workbench.page


def test_the_slow_machine_is_on_screen_and_one_click_shows_its_ranks(
    workbench: Workbench, large_job: str
) -> None:
    page = _open(workbench, large_job)
    first = page.locator(".job-findings li").first.inner_text()
    assert "Ranks 840-847 (node-105): backward 25% longer in every step" in first
    assert page.locator(".heat-mark").count() == 2 * len(_SLOW)
    workbench.click(".job-findings button")
    assert page.locator(".job-rank h2").inner_text().startswith("Rank 840 node-105")
    row = page.locator(".job-rank tr", has_text="backward").inner_text().split("\t")
    assert [cell.replace("\u202f", " ") for cell in row[1:3]] == ["50.0 ms", "40.1 ms"]
    assert "ends in the middle" in page.locator(".job-errors").inner_text()
    assert "#rank=840&by=node&part=backward" in page.evaluate("location.hash")


def test_a_click_on_the_map_chooses_the_rank_under_it(workbench: Workbench, large_job: str) -> None:
    page = _open(workbench, large_job)
    canvas = page.get_by_role("slider", name="Ranks by stage")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 843.5 / 1024, "y": 5})
    chosen = canvas.get_attribute("aria-valuetext")
    assert chosen in [f"rank {rank}, node-105" for rank in _SLOW]
    canvas.press("Home")
    canvas.press("ArrowRight")
    assert canvas.get_attribute("aria-valuetext") == "rank 1, node-0"
    page.get_by_label("Ranks by", exact=True).select_option("own work")
    canvas.press("Home")
    assert canvas.get_attribute("aria-valuetext") in [f"rank {rank}, node-105" for rank in _SLOW]


def test_a_slow_rank_is_seen_where_many_share_a_pixel(workbench: Workbench, large_job: str) -> None:
    """Of the ranks in a column the one that differs most gives the color."""
    page = _open(workbench, large_job)
    workbench.resize(390, 900)
    page.wait_for_function("document.querySelector('.heat canvas').width < 400")
    orange = page.evaluate("""() => {
      const canvas = document.querySelector('.heat canvas');
      const {data} = canvas.getContext('2d').getImageData(0, canvas.height - 1, canvas.width, 1);
      const strong = [...Array(canvas.width).keys()].filter(x => data[4 * x + 2] < 100);
      return strong.map(x => x / canvas.width * 1024);
    }""")
    assert orange
    assert all(836 <= rank <= 848 for rank in orange)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible(workbench: Workbench, large_job: str, theme: str) -> None:
    workbench.in_theme(theme)
    page = _open(workbench, large_job)
    workbench.click(".job-findings button")
    assert violations(page) == []


def test_a_rank_opens_beside_the_one_that_works_like_the_median(
    workbench: Workbench, small_job_url: str
) -> None:
    page = _open(workbench, small_job_url)
    assert page.evaluate("fetch('/api/traces').then(one => one.json())")["traces"][0]["state"] == "closed"
    workbench.click(".job-findings button")
    workbench.click("text=which works like the median rank")
    page.locator(".compare-verdict").wait_for()
    assert page.locator("select[aria-label=Trace] option:checked").inner_text() == "rank5.json"
    states = page.evaluate("fetch('/api/traces').then(one => one.json())")["traces"]
    assert sorted(one["state"] for one in states) == ["closed"] * 6 + ["ready"] * 2
    workbench.click("text=All ranks")
    page.locator(".job-findings").wait_for()
