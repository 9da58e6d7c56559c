"""Folders of ranks: up to 16 are joined, more are compared by their sketches, with one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.errors import IngestError
from stepscope.faces.page.open_files import Workbench
from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.load import open as stepscope_open
from stepscope.models.ranks.files import RankFile
from stepscope.models.ranks.job import MOST_JOINED
from stepscope.models.ranks.map_ranks import _sketch_file

pytestmark = pytest.mark.main  # jobs of many ranks take seconds
SLOW = 5
Write = Callable[[int], Path]


def write_rank(folder: Path, rank: int, longer: int) -> None:
    """Four steps; each ends with an all-reduce that lasts until the slow rank has arrived."""
    events = []
    for step in range(4):
        begin, arrives = 10_000 * step, 5_000 + longer
        for category, name, track, at, length in (
            ("user_annotation", f"ProfilerStep#{step}", 1, 0, 10_000),
            ("cuda_runtime", "cudaLaunchKernel", 1, 10, 5),
            ("cuda_runtime", "cudaDeviceSynchronize", 1, 100, 9_850),
            ("kernel", "gemm", 7, 20, arrives - 20),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32", 8, arrives, 9_900 - arrives),
        ):
            number = 100 * step + 1
            linked = {"correlation": number} if track != 1 or "Launch" in name else {}
            on_device = {"device": 0, "stream": track} if track != 1 else {}
            events.append(
                {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "pid": 0 if on_device else 1,
                    "tid": track,
                    "ts": begin + at,
                    "dur": length,
                    "args": {**linked, **on_device},
                }
            )
    trace = {
        "traceEvents": events,
        "deviceProperties": [{"id": 0, "name": "A100"}],
        "distributedInfo": {"rank": rank, "world_size": 64},
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(trace))


@pytest.fixture
def job(tmp_path: Path) -> Write:
    """Writes a job of so many ranks, one of which computes 2 ms longer."""

    def written(ranks: int) -> Path:
        folder = tmp_path / f"job{ranks}"
        folder.mkdir()
        for rank in range(ranks):
            write_rank(folder, rank, 2_000 if rank == SLOW else 0)
        return folder

    return written


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were opened in full."""
    from stepscope.facts import load

    paths: list[str] = []
    original = load.open

    def noting(path: str, **options: object) -> object:
        paths.append(Path(path).name)
        return original(path, **options)

    monkeypatch.setattr(load, "open", noting)
    return paths


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(stepscope, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.main
def test_a_report_says_the_same_of_16_and_of_17_ranks(job: Write, opened: list[str]) -> None:
    few, many = job(MOST_JOINED), job(MOST_JOINED + 1)
    answers = [json.loads(call("report", str(one), "--json")[1]) for one in (few, many)]
    assert opened == ["job16", "rank5.json"]
    of_few, of_many = (one["job"] for one in answers)
    assert (of_few.pop("ranks"), of_many.pop("ranks")) == (16, 17)
    assert of_few == of_many
    assert of_few["slowest_rank"] == SLOW
    assert of_few["findings"][0]["sentence"].startswith("Rank 5: ")
    assert "Mostly gemm" in of_few["findings"][0]["sentence"]
    assert answers[0]["ranks"][SLOW]["stages"] == answers[1]["ranks"][0]["stages"]
    for folder in (few, many):
        lines = call("report", str(folder))[1].splitlines()
        assert lines[0].startswith("Rank 5: ")
        assert "ranks compared, 10.00 ms per step" in lines[0]
        assert f"stepscope ranks {folder}" in "\n".join(lines[1:4])
        assert "rank 5 of" in "\n".join(lines)


def test_what_was_read_is_said_on_stderr(job: Write) -> None:
    folder = str(job(17))
    only_one = "! 17 ranks are compared by their sketches; only rank 5, the slowest, is read in full"
    for command in ("report", "analyze"):
        assert only_one in call(command, folder)[2]
    assert only_one in call("whatif", folder, "amp")[2]
    code, out, err = call("query", folder, "select distinct rank from tracks")
    assert (code, out.split()[-1]) == (0, "0")
    assert "only rank 0 is read" in err


def test_a_rank_is_opened_alone(job: Write, opened: list[str]) -> None:
    folder = str(job(17))
    code, out, err = call("report", folder, "--rank", "9", "--json")
    assert (code, err, opened) == (0, "", ["rank9.json"])
    assert json.loads(out)["rank"] == 9
    code, _, err = call("report", folder, "--rank", "40")
    assert code == 2
    assert "no file of rank 40 among 17 files" in err


def test_analyze_names_the_slow_rank_of_many(job: Write, opened: list[str]) -> None:
    code, out, _ = call("analyze", str(job(17)), "--json")
    assert (code, opened) == (0, ["rank5.json"])
    (found,) = (one for one in json.loads(out)["findings"] if one["rule"] == "straggling_rank")
    assert "Rank 5" in found["what"]


@pytest.mark.parametrize("change", ["no_straggler", "bandwidth:factor=4"])
def test_changes_to_the_whole_job_are_predicted_alike(job: Write, opened: list[str], change: str) -> None:
    few, many = (json.loads(call("whatif", str(job(ranks)), change, "--json")[1]) for ranks in (16, 17))
    assert opened == ["job16"]
    for key in ("measured_step_ms", "replayed_step_ms", "predicted_step_ms"):
        assert many[key] == pytest.approx(few[key], rel=0.02)
    assert many["ranks"] == 17


def test_a_change_that_sketches_cannot_show_is_refused(job: Write) -> None:
    code, _, err = call("whatif", str(job(17)), "bandwidth:factor=0")
    assert code == 2
    assert "expected factor above 0" in err


def test_files_that_cannot_be_read_are_reported(job: Write) -> None:
    folder = job(18)
    (folder / "rank17.json").write_text('{"traceEvents": [3')
    code, out, err = call("report", str(folder))
    assert code == 0
    assert out.startswith("Rank 5: ")
    assert "17 ranks compared" in out
    assert "rank17.json" in err
    for path in folder.iterdir():
        path.write_text('{"traceEvents": [3')
    code, out, err = call("report", str(folder))
    assert (code, out) == (2, "")
    assert "no rank can be read" in err


def test_a_joined_folder_names_files_that_cannot_be_read_whichever_rank_is_shown(job: Write) -> None:
    folder = job(8)
    (folder / "rank7.json").write_text('{"traceEvents": [3')
    out = call("report", str(folder))[1]
    assert out.startswith("Rank 5: ")
    assert "7 ranks compared" in out
    assert "rank7.json" in "".join(out.split())  # long paths are wrapped


def test_view_takes_many_ranks_alone(job: Write, tmp_path: Path) -> None:
    folder = job(17)
    code, _, err = call("view", str(folder), str(folder / "rank0.json"), "--no-browser")
    assert code == 2
    assert "holds 17 ranks, too many to show next to other files" in err


def test_the_page_about_many_ranks_takes_custom_rules(
    job: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("from stepscope.analyze import RULES\nRULES = [RULES[0]]\n")
    served: list[Workbench] = []
    monkeypatch.setattr("stepscope.faces.page.server.serve", lambda workbench, *_: served.append(workbench))
    monkeypatch.setattr("stepscope.faces.page.bundle.page", lambda *_: None)
    code, _, _ = call("view", str(job(17)), "--no-browser", "--rules", str(tmp_path / "mine.py"))
    assert (code, len(served[0].files)) == (0, 17)
    assert {len(file._rules) for file in served[0].files.values()} == {1}


def test_the_ranks_of_one_file_are_compared_too(job: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a recording of Nsight Systems of all processes of a machine."""
    folder = job(7)
    whole = stepscope_open(folder)
    monkeypatch.setattr("stepscope.faces.terminal.ranks.open_trace", lambda path: whole)
    code, out, _ = call("ranks", str(folder / "rank0.json"))
    assert (code, "▶ Rank 5: " in out, "7 ranks · " in out) == (0, True, True)


def test_a_file_of_several_ranks_is_no_single_rank(job: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job(7)
    whole = stepscope_open(folder)
    monkeypatch.setattr("stepscope.facts.load.open_file", lambda *_, **how: whole)
    with pytest.raises(IngestError, match="holds 7 ranks; name this file alone"):
        _sketch_file("", None, RankFile.of(folder / "rank0.json"))
