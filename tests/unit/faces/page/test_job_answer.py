"""What the page about a job shows, from sketches of known ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.faces.page import job_answer as page
from stepscope.faces.page.job_answer import JobAnswer, job_answer
from stepscope.faces.terminal.commands import stepscope as command
from stepscope.models.ranks import Sketch
from stepscope.models.ranks.job import Job, report_of
from stepscope.models.ranks.map_ranks import RankResult

STEPS = 10


def sketch(rank: int, forward: float) -> Sketch:
    return Sketch(
        rank=rank,
        node=f"node-{rank // 2}",
        device="",
        steps=list(range(STEPS)),
        length=[100.0] * STEPS,
        work={"forward": [forward] * STEPS, "backward": [40.0] * STEPS},
        waiting=[60.0 - forward] * STEPS,
        kernels={},
    )


def answer_of(*forward: float) -> JobAnswer:
    sketches = [sketch(rank, one) for rank, one in enumerate(forward)]
    job = Job.of(sketches)
    results = [RankResult(f"/job/rank{one.rank}.json", one) for one in sketches]
    results.append(RankResult("/job/bad.json", None, "/job/bad.json: no JSON"))
    return job_answer("job", job, report_of(job), results)


def test_each_rank_is_shown_by_stage_and_by_step() -> None:
    found = answer_of(20, 21, 20, 50)
    assert [(one.rank, one.node, one.file, one.trace) for one in found.ranks][3] == (
        3,
        "node-1",
        "/job/rank3.json",
        None,
    )
    assert (found.stages, found.work) == (["forward", "backward"], [[20, 21, 20, 50], [40] * 4])
    assert found.by_step["own work"] == [[60, 61, 60, 90]] * STEPS
    assert list(found.by_step) == ["own work", "forward", "backward"]
    assert (found.ranks[found.median_rank].rank, found.ranks[3].waiting_ms) == (0, 10)
    assert [one.ranks for one in found.findings] == [(3,)]
    assert found.verdict.startswith("Rank 3: forward")
    assert [one.error for one in found.errors] == ["/job/bad.json: no JSON"]


def test_the_stages_that_differ_most_are_kept_where_there_is_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "_MOST_NUMBERS", 2 * 4 * STEPS)
    assert list(answer_of(20, 21, 20, 50).by_step) == ["own work", "forward"]


def test_the_command_writes_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    for rank in range(2):
        events = [
            {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": at, "dur": length}
            for start in (0, 10_000)
            for name, cat, at, length in (
                (f"ProfilerStep#{start}", "user_annotation", start, 9_000),
                ("aten::mm", "cpu_op", start + 10, 5_000),
            )
        ]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    out = tmp_path / "job.html"
    result = CliRunner().invoke(command, ["ranks", str(tmp_path), "--html", str(out)])
    assert result.exit_code == 0, result.output
    html = out.read_text()
    assert 'id="stepscope-job"' in html
    assert 'src="' not in html
