"""Captures are written whole or not at all, and never at the cost of another one."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.errors import CaptureError
from stepscope.record.capture_file import (
    CaptureFile,
    check_target,
    is_capture,
    replace_manifest,
    write_capture,
)
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.options import Rank, RecordOptions, target_path
from stepscope.record.profiler_handler import recorded_steps


def manifest():
    run = Run(["train.py", "--lr", "1"], RecordOptions(memory=True), cwd="/home/me", rank=Rank(1, 2))
    return build_manifest(run, RunResult("complete", "recorded step 5", 6, [5], "SGD.step"))


def test_a_capture_holds_what_it_was_given(tmp_path):
    path = tmp_path / "run.stepscope"

    write_capture(
        path, manifest(), {"roots": []}, {"trace.json": lambda p: p.write_bytes(b'{"traceEvents": []}')}
    )

    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["modules.json", "trace.json", "manifest.json"]
        assert archive.testzip() is None
        assert json.loads(archive.read("trace.json")) == {"traceEvents": []}
    assert is_capture(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_earlier_capture(tmp_path):
    path = tmp_path / "run.stepscope"
    write_capture(path, manifest(), {"roots": []}, {})
    before = path.read_bytes()

    def fail(_):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_capture(path, manifest(), {"roots": []}, {"trace.json": fail})

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_manifest_says_who_recorded_what():
    said = json.loads(json.dumps(manifest()))

    assert said["format"] == "stepscope capture"
    assert said["version"] == 1
    assert said["command"] == ["train.py", "--lr", "1"]
    assert (said["rank"], said["world_size"]) == (1, 2)
    assert said["options"] == {
        "warmup": 5,
        "steps": 3,
        "memory": True,
        "shapes": True,
        "stack": False,
        "step_every": 1,
        "from_optimizer": 1,
        "recorder_memory": 0,
    }
    assert (said["outcome"], said["steps_seen"], said["steps_recorded"]) == ("complete", 6, [5])
    assert said["warnings"] == []


def test_an_earlier_capture_may_be_overwritten_and_nothing_else(tmp_path):
    capture = tmp_path / "run.stepscope"
    write_capture(capture, manifest(), {"roots": []}, {})
    check_target(capture)

    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    with pytest.raises(CaptureError, match=r"thesis.tex: the file exists and is not a capture"):
        check_target(thesis)
    with pytest.raises(CaptureError, match="choose another file"):
        check_target(tmp_path)
    with pytest.raises(CaptureError, match="is not writable"):
        check_target(thesis / "run.stepscope")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_has_no_end_is_refused_without_reading_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CaptureError, match="choose another file"):
        check_target(pipe)


@pytest.mark.parametrize(
    ("output", "rank", "expected"),
    [
        (None, Rank(), "train.stepscope"),
        ("a/b.stepscope", Rank(), "a/b.stepscope"),
        (None, Rank(1, 4), "train/rank1.stepscope"),
        ("out.v2.stepscope", Rank(0, 2), "out.v2/rank0.stepscope"),
    ],
)
def test_each_rank_has_a_file(output, rank, expected):
    assert target_path(output, "train", rank) == Path.cwd() / expected


def test_the_rank_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Rank.from_environment() == Rank(3, 8)

    monkeypatch.setenv("RANK", "none")
    assert Rank.from_environment() == Rank()

    for rank in ("-1", "8"):  # launchers say so of a single process
        monkeypatch.setenv("RANK", rank)
        assert Rank.from_environment() == Rank()


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, Rank(1, 4)),  # srun
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Rank()),  # a batch script starts one process
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, Rank(2, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, Rank(2, 4)),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, Rank(2, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, Rank()),
        # mpirun started its helpers with srun, one on each machine
        (
            {
                **{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
                **{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
            },
            Rank(5, 8),
        ),
        # srun started torchrun
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, Rank(5, 8)),
    ],
)
def test_each_launcher_reports_the_rank_in_its_way(monkeypatch, environment, rank):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Rank.from_environment() == rank


@pytest.mark.parametrize(
    ("command", "rank"),
    [
        ("python /opt/bin/torchrun --nproc-per-node 8 train.py", Rank()),
        ("python -u -m torch.distributed.run train.py", Rank()),
        ("python -m accelerate.commands.launch train.py", Rank()),
        ("python /lib/ray/_private/workers/default_worker.py --node-id=1", Rank()),
        ("python -u train.py torchrun", Rank(1, 4)),
        ("python accelerate/train.py", Rank(1, 4)),
    ],
)
def test_a_launcher_in_a_task_of_srun_is_no_rank(monkeypatch, command, rank):
    """Nor is a worker of Ray: several are in one task."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setattr("sys.orig_argv", command.split())
    assert Rank.from_environment() == rank


def test_ranks_that_a_script_starts_are_those_of_their_group(monkeypatch):
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert Rank.from_environment() == Rank(5, 8)


def test_steps_are_found_across_chunks(tmp_path, monkeypatch):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{"name": f"ProfilerStep#{n}"} for n in (7, 12)]}))
    for size in (5, 17, 1000):
        monkeypatch.setattr("stepscope.record.profiler_handler._CHUNK_BYTES", size)
        assert recorded_steps(trace) == [7, 12]


def test_keys_of_a_manifest_can_be_changed(tmp_path):
    path = tmp_path / "run.stepscope"
    write_capture(path, manifest(), {"roots": []}, {"trace.json": b"{}" * 1000})
    for value in ({"count": 20, "median_ns": 10**9}, None):
        replace_manifest(path, {"unrecorded_steps": value})
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == ["modules.json", "trace.json", "manifest.json"]
            assert json.loads(archive.read("manifest.json")) == {
                **json.loads(json.dumps(manifest())),
                "created_unix_ns": json.loads(archive.read("manifest.json"))["created_unix_ns"],
                "unrecorded_steps": value,
            }
    assert list(tmp_path.iterdir()) == [path]


def content(file: CaptureFile, text: str | None) -> None:
    """Write a capture whose trace is `text`; without a recording where that is None."""
    manifest = build_manifest(Run(["train.py"], RecordOptions()), RunResult("complete", "recorded"))
    file.write(manifest, {"roots": []}, {} if text is None else {"trace.json": text.encode()})


def trace_in(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read("trace.json").decode()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.stepscope"


def test_an_earlier_capture_is_kept_under_the_next_free_name(path: Path) -> None:
    for text in ("first", "second", "third"):
        file = CaptureFile(path)
        content(file, text)
    assert trace_in(path) == "third"
    assert trace_in(path.with_name("train.1.stepscope")) == "first"
    assert trace_in(path.with_name("train.2.stepscope")) == "second"
    assert file.note == "kept the earlier capture as train.2.stepscope"
    assert len(names(path.parent)) == 3


def test_overwrite_replaces_an_earlier_capture(path: Path) -> None:
    content(CaptureFile(path), "first")
    content(CaptureFile(path, overwrite=True), "second")
    assert trace_in(path) == "second"
    assert names(path.parent) == {path.name}


def test_a_run_may_write_its_own_file_again(path: Path) -> None:
    file = CaptureFile(path)
    content(file, "half")
    content(file, "whole")
    assert trace_in(path) == "whole"
    assert names(path.parent) == {path.name}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_capture_without_steps_never_replaces_one_with_some(path: Path, overwrite: bool) -> None:
    content(CaptureFile(path), "good")
    before = path.read_bytes()
    file = CaptureFile(path, overwrite=overwrite)
    content(file, None)
    assert path.read_bytes() == before
    assert names(path.parent) == {path.name}
    assert not file.is_written
    assert file.note == "kept the earlier capture train.stepscope, which has a recording"


def test_a_capture_without_steps_is_replaced_or_kept_like_any_other(path: Path) -> None:
    content(CaptureFile(path), None)
    content(CaptureFile(path), None)
    assert is_capture(path)
    assert names(path.parent) == {path.name, "train.1.stepscope"}


def test_simultaneous_runs_get_distinct_names(path: Path) -> None:
    files = [CaptureFile(path) for _ in range(3)]
    for number, file in enumerate(files):
        content(file, f"run {number}")
    content(files[0], "run 0 again")
    assert [file.path.name for file in files] == ["train.stepscope", "train-2.stepscope", "train-3.stepscope"]
    assert [trace_in(file.path) for file in files] == ["run 0 again", "run 1", "run 2"]
    assert files[1].note == "another run wrote train.stepscope meanwhile"
    assert files[0].note == ""


def test_ranks_keep_whole_folders(tmp_path: Path) -> None:
    def run(text: str, size: int) -> None:
        ranks = [Rank(number, size) for number in range(size)]
        paths = [tmp_path / "train" / f"rank{rank.rank}.stepscope" for rank in ranks]
        files = [CaptureFile(path, rank) for path, rank in zip(paths, ranks, strict=True)]
        for file in files:
            content(file, text)

    run("first", 4)
    run("second", 2)
    assert names(tmp_path) == {
        "train/rank0.stepscope",
        "train/rank1.stepscope",
        *(f"train.1/rank{number}.stepscope" for number in range(4)),
    }
    assert trace_in(tmp_path / "train/rank1.stepscope") == "second"


def test_a_failed_write_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content(CaptureFile(path), "good")
    original = Path.replace

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        content(CaptureFile(path), "new")
    monkeypatch.setattr(Path, "replace", original)
    assert trace_in(path) == "good"
    assert names(path.parent) == {path.name}


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    file = CaptureFile(folder / "train.stepscope")
    folder.rmdir()
    with pytest.raises(FileNotFoundError, match="no longer exists"):
        content(file, "new")
    assert not folder.exists()


def test_a_folder_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    file = CaptureFile(tmp_path / "new" / "deep" / "train.stepscope")
    content(file, "new")
    assert trace_in(file.path) == "new"


@pytest.mark.parametrize("at", [1, 60, 200])
def test_a_damaged_capture_is_none(path: Path, at: int) -> None:
    content(CaptureFile(path), "good")
    whole = path.read_bytes()
    manifest = whole.rindex(b"manifest.json", 0, whole.rindex(b"PK\1\2")) + len("manifest.json")
    path.write_bytes(
        whole[: manifest + at] + bytes([whole[manifest + at] ^ 0xFF]) + whole[manifest + at + 1 :]
    )
    with pytest.raises(CaptureError, match="exists and is not a capture"):
        check_target(path)


def test_a_folder_that_stays_locked_is_written_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the program runs as `flock FOLDER COMMAND`."""
    slept: list[float] = []
    monkeypatch.setattr("stepscope.record.capture_file.time.sleep", slept.append)
    theirs = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        content(CaptureFile(path), "new")
    finally:
        os.close(theirs)
    assert trace_in(path) == "new"
    assert sum(slept) <= 1.01
