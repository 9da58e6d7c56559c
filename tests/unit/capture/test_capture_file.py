"""A capture never costs another one: kept files, simultaneous runs, runs without steps."""

import zipfile
from pathlib import Path

import pytest

from stepscope.capture.capture_file import CaptureFile, is_capture
from stepscope.capture.manifest import Result, Run, build_manifest
from stepscope.capture.options import Rank, RecordOptions


def content(file: CaptureFile, text: str | None) -> None:
    """Write a capture whose trace is `text`; without a recording where that is None."""
    manifest = build_manifest(Run(["train.py"], RecordOptions()), Result("complete", "recorded"))
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
    assert [file.path.name for file in files] == [
        "train.stepscope", "train-2.stepscope", "train-3.stepscope"
    ]  # fmt: skip
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
        "train/rank0.stepscope", "train/rank1.stepscope",
        *(f"train.1/rank{number}.stepscope" for number in range(4)),
    }  # fmt: skip
    assert trace_in(tmp_path / "train/rank1.stepscope") == "second"


def test_a_failed_write_leaves_everything_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
