"""Every command and the page judge a job alike: step, culprit, cause and gains, the culprit first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from test_balanced_pipelines import FAULTS, generated
from tiers import family

from stepscope.base.numbers import ms
from stepscope.faces.assistant.answers import Answers, Recordings
from stepscope.faces.page.finding_answers import findings
from stepscope.faces.page.report_answers import collectives, overview
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import whatif
from stepscope.faces.terminal.commands import stepscope
from stepscope.faces.terminal.mcp import document_of
from stepscope.facts import load

COMMANDS = ("report", "analyze", "whatif")
CHANGES = ("no_straggler", "bandwidth:factor=2")


def call(command: str, folder: Path, *options: str) -> str:
    result = CliRunner().invoke(stepscope, [command, str(folder), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def judged(folder: Path) -> dict[str, Any]:
    """What all commands and the page say about the job, after it was compared."""
    answers = {command: json.loads(call(command, folder, "--json")) for command in COMMANDS}
    view = TraceView(load.open(folder))
    page = overview(view, Query({}))
    job = answers["report"]["job"]
    assert (
        answers["analyze"]["job"]
        == answers["whatif"]["job"]
        == job
        == json.loads(msgspec.json.encode(page.job))
    )
    assert answers["analyze"]["rank"] == page.rank == job["slowest_rank"]
    found, pane = findings(view, Query({})), collectives(view, Query({}))
    assert (pane.rank, pane.step_ms) == (page.rank, pytest.approx(found.step_ms))
    gains = [(one["rule"], one["gain_ms"], one["changes"]) for one in answers["analyze"]["findings"]]
    on_page = [(one.rule, pytest.approx(one.gain_ms, abs=1e-3), one.changes) for one in found.findings]
    assert gains == on_page
    for one in found.findings:
        if one.changes:  # simulated for all ranks
            assert one.share_of == "job's step"
            assert one.share == pytest.approx(min(one.gain_ms / replayed_ms(view), 1), abs=1e-3)
    compared = json.loads(call("ranks", folder, "--json"))
    assert compared["step_ms"] == pytest.approx(job["step_ms"])
    first = [(one["sentence"], one["stage"], one["cost_ms"]) for one in compared["stragglers"]]
    assert [(one["sentence"], one["stage"], one["cost_ms"]) for one in job["findings"]] == first
    assert compared["whatifs"] == {}  # ranks that are joined have one prediction: that of their graph
    for change in CHANGES:
        same_prediction(change, folder, view)
    return job


def replayed_ms(view: TraceView) -> float:
    answer = whatif(view, Query({"changes": "bandwidth:factor=2"})).answer
    assert answer is not None
    return answer.replayed_step_ms


def same_prediction(change: str, folder: Path, view: TraceView) -> None:
    """The step with a change as a command and the page predict it; or why they do not."""
    on_page = whatif(view, Query({"changes": change}))
    result = CliRunner().invoke(stepscope, ["whatif", str(folder), change, "--json"])
    if on_page.answer is None:
        assert on_page.reason in result.stderr
    else:
        predicted = json.loads(result.stdout)["predicted_step_ms"]
        assert predicted == pytest.approx(on_page.answer.predicted_step_ms, abs=1e-3)


def told_alike(folder: Path) -> None:
    """Assistants are told what commands say, of one change and in the list of all."""
    tools = Answers(Recordings([folder.parent]), document_of)
    gains = {one["changes"][0].partition(":")[0]: one for one in tools.whatif(folder.name, [])["gains"]}
    text = call("explain", folder, "--tokens", "4000")
    worst = json.loads(call("analyze", folder, "--json"))["findings"][0]
    assert re.search(f"saves (about|up to) {re.escape(ms(worst['gain_ms']))} ms", text)
    assert tools.open(folder.name)["job"].step_ms == json.loads(call("ranks", folder, "--json"))["step_ms"]
    for change in CHANGES:
        step_ms = json.loads(call("whatif", folder, change, "--json"))["predicted_step_ms"]
        assert tools.whatif(folder.name, [change]).predicted_step_ms == pytest.approx(step_ms, abs=1e-3)
        gain = gains[change.partition(":")[0]]
        assert gain["predicted_step_ms"] == pytest.approx(step_ms, abs=1e-3)
        if gain["speedup"] >= 1.01:
            assert (
                f"{change.partition(':')[0]}: replayed {ms(gain['replayed_step_ms'])} → {ms(step_ms)} ms"
                in text
            )


@pytest.mark.main
def test_every_command_begins_with_the_culprit(tmp_path: Path) -> None:
    folder = generated(0).write(tmp_path / "job")
    verdict = judged(folder)["sentences"][0]
    told_alike(folder)
    for command in COMMANDS:
        assert " ".join(call(command, folder).split()).startswith(verdict)
    assert call("ranks", folder).startswith(f"▶ {verdict.partition(' It costs')[0]}")


@pytest.mark.parametrize("number", family([9, 0, *range(18, 180, 9)], 1, every=3, unit=0))
def test_generated_jobs_are_judged_alike(number: int, tmp_path: Path) -> None:
    job = generated(number)
    answer = judged(job.write(tmp_path / "job"))
    if FAULTS[number % 5] == "worker":
        ranks = range(job.replicas * job.stages)
        assert answer["slowest_rank"] == max(
            ranks, key=lambda rank: sum(job.compute_us(rank, batch) for batch in range(job.batches))
        )


@pytest.mark.main
def test_shared_folders_are_judged_alike(traces: Path) -> None:
    job = judged(traces / "dlrm_8rank_v100")
    told_alike(traces / "dlrm_8rank_v100")
    assert (job["step_ms"], job["slowest_rank"]) == (pytest.approx(15.77, abs=0.01), 7)
