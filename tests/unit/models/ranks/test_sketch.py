"""Sketches of drawn traces, with the expected numbers next to them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.errors import IngestError
from stepscope.faces.terminal.commands import stepscope as command
from stepscope.facts.annotate import annotate
from stepscope.models.ranks import job_report, sketch_files, sketch_of
from stepscope.models.ranks.files import files_at
from stepscope.testing import drawn_trace

STEP = """
    main     |    0 1000 | ProfilerStep#0
    main     |    0  100 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     |  100  300 | aten::mm         | seq=1
    main     |  110  120 | cudaLaunchKernel | corr=1
    main     |  900 1000 | Optimizer.step#SGD.step
    main     |  910  920 | cudaLaunchKernel | corr=3
    autograd |  400  600 | MmBackward0      | seq=1 fwd=1
    autograd |  410  420 | cudaLaunchKernel | corr=2
    stream 7 |  130  330 | sgemm            | corr=1
    stream 7 |  430  730 | sgemm            | corr=2
    stream 7 |  930  980 | adam             | corr=3
    comm 8   |  740  800 | ncclDevKernel_AllReduce
"""


def test_own_work_is_by_stage_and_communication_is_waiting() -> None:
    sketch = sketch_of(annotate(drawn_trace(STEP)), node="node-1")
    assert sketch.node == "node-1"
    assert sketch.work == {
        "data_loading": [0.1],
        "forward": [0.2],
        "backward": [0.3],
        "optimizer": [0.05],
        # 100-110, 330-410, 980-1000, and 730-910: nothing is launched before the collective ends,
        # so without it, the device would idle as long.
        "host": [0.29],
    }
    assert sketch.waiting == [0.06]
    assert sketch.kernels == {"sgemm": (2.0, 0.3), "adam": (1.0, 0.05)}


@pytest.mark.parametrize(("end", "waits_ms"), [(740, 0.06), (770, 0.03), (800, 0.0), (900, 0.0)])
def test_a_collective_that_work_hides_is_not_waited_for(end: int, waits_ms: float) -> None:
    text = STEP.replace("430  730", f"430  {end}")
    assert sketch_of(annotate(drawn_trace(text))).waiting == [pytest.approx(waits_ms)]


def test_ranks_without_work_and_with_steps_of_one_number_are_compared() -> None:
    idle = "main | 5 5 | ProfilerStep#0"
    report = job_report([sketch_of(annotate(drawn_trace(idle)))] * 2)
    assert [(row.work_ms, row.waiting_ms) for row in report.rows] == [({}, 0.0)] * 2
    alike = "\n".join(f"main | {100 * n} {100 * n + 90} | ProfilerStep#1" for n in range(300))
    sketch = sketch_of(annotate(drawn_trace(alike)))
    assert len(sketch.length) == len(sketch.waiting)


def test_a_rank_waits_for_a_collective_once_its_next_work_is_launched() -> None:
    early = STEP.replace("910  920", "770  780").replace("930  980", "810  860")
    synchronizes = STEP + "    main     |  760  800 | cudaStreamSynchronize\n"
    late = sketch_of(annotate(drawn_trace(STEP))).calls.own_ns
    assert late == [1_000_000]
    assert sketch_of(annotate(drawn_trace(early))).calls.own_ns == [1_000_000 - 30_000]
    assert sketch_of(annotate(drawn_trace(synchronizes))).calls.own_ns == [1_000_000 - 40_000]


def write_rank(folder: Path, rank: int, longer: int = 0) -> Path:
    """Four steps of one rank as a trace file; `longer` μs more in each forward operator."""
    events = []
    for step in range(4):
        start = 10_000 * step
        for name, begin, length in (
            (f"ProfilerStep#{step}", 0, 10_000),
            ("aten::mm", 100, 3000 + longer),
            ("Optimizer.step#SGD.step", 8000, 500),
        ):
            events.append(
                {
                    "ph": "X",
                    "cat": "user_annotation" if "#" in name else "cpu_op",
                    "name": name,
                    "pid": 1,
                    "tid": 1,
                    "ts": start + begin,
                    "dur": length,
                    "args": {"Sequence number": 1} if name == "aten::mm" else {},
                }
            )
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 4}}))
    return path


def test_files_become_sketches_and_errors_become_rows(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, rank) for rank in (2, 0)]
    broken = tmp_path / "rank1.json"
    broken.write_text('{"traceEvents": []}')
    results = sketch_files([*files, broken])
    assert [one.sketch.rank if one.sketch else None for one in results] == [0, 2, None]
    assert str(broken) in results[-1].error


def test_kept_sketches_are_used_until_the_file_changes(tmp_path: Path) -> None:
    file = write_rank(tmp_path / "job", 0)
    read: list[str] = []
    dataset = tmp_path / "dataset"
    first = sketch_files([file], dataset, finished=read.append)
    again = sketch_files([file], dataset, finished=read.append)
    assert (first, read) == (again, [str(file)])
    (kept,) = (dataset / "rank=0").iterdir()
    kept.write_bytes(b"damaged")
    assert sketch_files([file], dataset, finished=read.append) == first
    write_rank(tmp_path / "job", 0, longer=2000)
    assert sketch_files([file], dataset, finished=read.append) != first
    assert len(read) == 3


def test_what_was_interrupted_goes_on_where_it_stopped(tmp_path: Path) -> None:
    files = [write_rank(tmp_path / "job", rank) for rank in range(4)]
    read: list[str] = []

    def stop_at_the_third(file: str) -> None:
        read.append(file)
        if len(read) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketch_files(files, tmp_path / "dataset", finished=stop_at_the_third)
    again: list[str] = []
    found = sketch_files(files, tmp_path / "dataset", finished=again.append)
    assert (found, again) == (sketch_files(files), [str(files[3])])


def test_sketches_kept_by_machine_serve_the_whole_job(tmp_path: Path) -> None:
    """As a SLURM array makes them: each task sees the folder of one machine."""
    nodes = [tmp_path / "job" / f"node-{number}" for number in range(2)]
    files = [write_rank(node, rank) for rank, node in enumerate(nodes)]
    for file in files:
        sketch_files([file], tmp_path / "dataset" / file.parent.name)
    read: list[str] = []
    found = sketch_files(files, tmp_path / "dataset", finished=read.append)
    assert ([one.sketch.node for one in found if one.sketch], read) == (["node-0", "node-1"], [])
    assert found == sketch_files(files)


def test_the_command_names_the_slow_machine(tmp_path: Path) -> None:
    for rank in range(8):
        write_rank(tmp_path / f"node-{rank // 2}", rank, longer=2500 if rank in (4, 5) else rank)
    result = CliRunner().invoke(command, ["ranks", str(tmp_path), "--json"])
    found = json.loads(result.stdout)
    (only,) = found["stragglers"]
    assert (only["ranks"], only["node"], only["stage"]) == ([4, 5], "node-2", "forward")
    assert only["excess_ms"] == pytest.approx(2.5, rel=0.01)
    text = CliRunner().invoke(command, ["ranks", str(tmp_path)]).stdout
    assert "▶ Ranks 4-5 (node-2): forward 80% longer in every step" in text


@pytest.mark.parametrize(
    "sources",
    [
        ["job"],
        ["job/node-*"],
        ["job/node-0", "job/node-1"],
        ["job/*/rank?.json"],
        ["job/node-0", "{folder}/job/node-1"],
        ["job/node-0/rank0.json", "job/node-*"],
        ["{url}/job"],
        ["{url}/job/node-*"],
        ["{url}/job/node-0/", "{url}/job/node-1"],
    ],
)
def test_a_job_is_named_by_its_folders_by_a_pattern_or_by_its_files(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        write_rank(tmp_path / "job" / f"node-{rank // 2}", rank, longer=2500 * (rank == 3))
    (tmp_path / "job" / "node-0" / "notes.txt").write_text("not a trace")
    monkeypatch.chdir(tmp_path)
    named = [one.format(folder=tmp_path, url=tmp_path.as_uri()) for one in sources]
    found = json.loads(CliRunner().invoke(command, ["ranks", *named, "--json"]).stdout)
    assert [(one["rank"], one["node"]) for one in found["rows"]] == [
        (0, "node-0"),
        (1, "node-0"),
        (2, "node-1"),
        (3, "node-1"),
    ]
    assert (found["stragglers"][0]["ranks"], found["errors"]) == ([3], [])


def test_too_many_folders_in_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):  # more than Python's limit of recursion
        Path("d").mkdir()
        os.chdir("d")
    try:
        with pytest.raises(IngestError, match="has too many folders in folders"):
            files_at(tmp_path)
    finally:
        for _ in range(1200):  # pytest cannot remove them either
            os.chdir("..")
            Path("d").rmdir()


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        (["job/none-*"], "job/none-*: holds no trace"),
        (["job", "missing"], "missing: no such folder"),
        (["job", "file:///job"], "URLs and folders of this machine cannot be one job"),
    ],
)
def test_sources_that_are_no_job_are_one_line(
    sources: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank(tmp_path / "job", 0)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["ranks", *sources])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert reason in result.stderr


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["ranks", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "holds no trace; expected one file per rank" in result.stderr


def test_files_that_name_no_rank_get_free_numbers_and_that_is_said(tmp_path: Path) -> None:
    for rank, name in ((1, "rank1.json"), (0, "first.json"), (0, "second.json")):
        path = write_rank(tmp_path, rank)
        text = json.loads(path.read_text())
        if name != path.name:
            del text["distributedInfo"]
        path.unlink()
        (tmp_path / name).write_text(json.dumps(text))
    result = CliRunner().invoke(command, ["ranks", str(tmp_path), "--json"])
    assert [row["rank"] for row in json.loads(result.stdout)["rows"]] == [0, 1, 2]
    assert result.stderr == (
        "! 2 without a rank of their own, shown with a free one: "
        f"{tmp_path}/first.json as 0, {tmp_path}/second.json as 2\n"
    )


def test_a_job_in_a_store_is_read_by_its_url(tmp_path: Path) -> None:
    """As of `s3://bucket/job/`: listed, each file fetched where it is read, and thrown away."""
    for rank in range(4):
        write_rank(tmp_path / "job" / f"node-{rank // 2}", rank, longer=2500 * (rank > 1))
    (tmp_path / "job" / "notes.txt").write_text("not a trace")
    url = (tmp_path / "job").as_uri()
    found = sketch_files(files_at(url), tmp_path / "dataset")
    local = sketch_files(files_at(tmp_path / "job"))
    assert [one.sketch for one in found] == [one.sketch for one in local]
    assert [one.file.rpartition("/job/")[2] for one in found] == [
        f"node-{rank // 2}/rank{rank}.json" for rank in range(4)
    ]
    assert {one.sketch.node for one in found if one.sketch} == {"node-0", "node-1"}
    read: list[str] = []
    assert sketch_files(files_at(url), tmp_path / "dataset", finished=read.append) == found
    assert read == []


def test_an_error_of_a_fetched_file_names_its_url(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    (tmp_path / "rank1.json").write_text('{"traceEvents": []}')
    result = CliRunner().invoke(command, ["ranks", tmp_path.as_uri(), "--json"])
    (only,) = json.loads(result.stdout)["errors"]
    assert only["file"] == f"{tmp_path.as_uri()}/rank1.json"
    assert only["error"].startswith(only["file"])
    assert "stepscope-rank-" not in only["error"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///no/such/folder", "holds no trace"),
        ("nonsense://bucket/job", "Protocol not known: nonsense"),
        ("ftp://127.0.0.1:9/job/", "cannot be read: ConnectionRefusedError"),
    ],
)
def test_a_store_that_cannot_be_read_is_one_line(url: str, reason: str) -> None:
    result = CliRunner().invoke(command, ["ranks", url])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert reason in result.stderr
    assert url in result.stderr


def test_a_rank_whose_file_is_cut_off_is_left_out(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, rank) for rank in range(3)]
    text = json.loads(files[1].read_text())
    text["traceEvents"] = [event for event in text["traceEvents"] if event["ts"] < 10_000]
    files[1].write_text(json.dumps(text))
    results = sketch_files(files)
    assert [one.sketch.rank for one in results if one.sketch] == [0, 2]
    assert "rank1.json: rank 1 has fewer than half of the steps of the others (1)" in (results[-1].error)
