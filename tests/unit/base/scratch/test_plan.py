"""What belongs to a script, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.base.scratch import COPY, IN_PLACE, plan_scratch
from stepscope.base.scratch import project as copies
from stepscope.base.scratch.project import outermost, project_of
from stepscope.errors import ScratchError


def test_a_project_is_the_nearest_folder_with_a_mark_of_one(tmp_path: Path) -> None:
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/examples/mnist").mkdir(parents=True)
    (tmp_path / "loose").mkdir()
    assert project_of(str(tmp_path / "repo/examples/mnist/train.py")) == str(tmp_path / "repo")
    assert project_of(str(tmp_path / "loose/train.py")) == str(tmp_path / "loose")


def test_folders_within_others_are_covered_by_them() -> None:
    assert outermost(["/a/b", "/a", "/ab", "/a"]) == ("/a", "/ab")


def test_the_working_folder_and_the_targets_of_links_are_protected(tmp_path: Path) -> None:
    for name in ("project", "work", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "project/data").symlink_to(tmp_path / "data")
    script = str(tmp_path / "project/train.py")
    found = plan_scratch(script, str(tmp_path / "work"), method=COPY)
    assert found.roots == (str(tmp_path / "project"), str(tmp_path / "work"))
    assert found.linked == (str(tmp_path / "data"),)
    assert "in a temporary copy" in found.sentence


def test_a_project_too_large_to_copy_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_MOST_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ScratchError, match=r"too large .* --in-place"):
        plan_scratch(str(tmp_path / "train.py"), str(tmp_path), method=COPY)
    assert plan_scratch(str(tmp_path / "t.py"), str(tmp_path), in_place=True).method == IN_PLACE


def test_a_large_file_is_linked_and_a_small_one_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGE", 10)
    source = tmp_path / "project"
    (source / "sub").mkdir(parents=True)
    (source / "large.bin").write_bytes(bytes(11))
    (source / "sub/small.bin").write_bytes(bytes(10))
    (source / "sub/link").symlink_to("small.bin")
    copies.copy_folder(str(source), str(tmp_path / "linked"), link_large=True)
    assert (tmp_path / "linked/large.bin").is_symlink()
    assert not (tmp_path / "linked/sub/small.bin").is_symlink()
    copies.copy_folder(str(source), str(tmp_path / "copied"), link_large=False)
    assert not (tmp_path / "copied/large.bin").is_symlink()
    assert (tmp_path / "copied/sub/link").resolve() == tmp_path / "copied/sub/small.bin"
    small = tmp_path / "copied/sub/small.bin"
    assert small.stat().st_nlink == (source / "sub/small.bin").stat().st_nlink == 1
