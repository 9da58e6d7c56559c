"""What a killed process left of a file is removed by the next that writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.base.unfinished_files import unfinished

posix = pytest.mark.skipif(os.name != "posix", reason="processes are looked up by signal 0")


def name_in_ended_process(path: Path, part: str = "file") -> Path:
    """The name that a process used which has ended."""
    code = (
        "import sys; from pathlib import Path; from stepscope.base.unfinished_files import unfinished; "
        "print(unfinished(Path(sys.argv[1]), sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(path), part]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout[:-1])


@posix
def test_what_ended_processes_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    file, folder = name_in_ended_process(path), name_in_ended_process(path, "folder")
    file.write_text("half")
    file.with_name(f"{file.name}.tmp").write_text("half, of PyTorch")
    folder.mkdir()
    (folder / "inside").touch()
    unfinished(path)
    assert list(tmp_path.iterdir()) == []


@posix
def test_what_may_be_in_use_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    own = unfinished(path, "own")
    other_file = name_in_ended_process(tmp_path / "other.html")
    ours = name_in_ended_process(path)
    of_parent = ours.with_name(ours.name.replace(ours.name.split("-")[-1].split(".")[0], "1"))
    elsewhere = ours.with_name(ours.name.replace("page.html.", "page.html.elsewhere"))
    odd = ours.with_name(f".page.html.{ours.name.split('.')[3]}-x.unfinished")
    kept = {own, other_file, of_parent, elsewhere, odd}
    for one in kept:
        one.touch()
    unfinished(path)
    assert set(tmp_path.iterdir()) == kept


def test_names_of_one_file_do_not_collide(tmp_path: Path) -> None:
    parts = {unfinished(tmp_path / "run.stepscope", part) for part in ("file", "trace.json")}
    assert len(parts) == 2
    assert all(part.parent == tmp_path and part.name.startswith(".run.") for part in parts)


@pytest.mark.parametrize("name", ["-n", "a\nb", "\udcff", "[x]*", "café", "a" * 255])
def test_odd_names(tmp_path: Path, name: str) -> None:
    unfinished(tmp_path / name).write_text("half")


def test_a_folder_that_is_missing_is_no_error(tmp_path: Path) -> None:
    assert unfinished(tmp_path / "missing" / "a").parent.name == "missing"
