"""Which source files are shown: those that the trace names, and nothing that they could lead to."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import ServeError
from stepscope.faces.page.trace_view import SourceFiles
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

NOT_HERE = "the file is not on this machine"


def files(*names: str, frames: str = "", root: Path | None = None, **capture: Any) -> SourceFiles:
    """The source files of a trace whose modules are called from files of these names."""
    children = [
        {"name": str(n), "class": "L", "call_file": name, "call_line": 1} for n, name in enumerate(names)
    ]
    model = {"name": "net", "class": "Net", "children": children}
    calls = "\n".join(f"main | {n + 1} {n + 2} | stepscope.module: {n}" for n in range(len(names)))
    text = f"main | 0 90 | ProfilerStep#1\nmain | 0 80 | stepscope.module:\n{calls}\n{frames}"
    return SourceFiles(annotate(drawn_trace(text, model=model, capture=capture)), root)


def test_a_named_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print('ü')\n", "utf-8")
    found = files(str(file)).read(str(file))
    assert (found.text, found.reason) == ("print('ü')\n", "")


def test_no_other_file_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "secret.py").write_text("")
    found = files(str(tmp_path / "train.py"))
    for name in ("secret.py", str(tmp_path / "secret.py"), f"{tmp_path}/x/../train.py"):
        with pytest.raises(ServeError, match="this trace does not name the file") as refusal:
            found.read(name)
        assert refusal.value.status == 404


def test_only_python_is_shown(tmp_path: Path) -> None:
    """A hostile trace may name any file as that of a module."""
    (tmp_path / "id_rsa").write_text("key")
    found = files(str(tmp_path / "id_rsa"), "/etc/passwd")
    assert found.read(str(tmp_path / "id_rsa")).reason == (
        "the name is a link to another file, which is not shown"
    )
    assert found.read("/etc/passwd").text is None


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.py").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    for name, target in (("a.py", "../secret.py"), ("b.py", "../secret.txt")):
        (tmp_path / "inner" / name).symlink_to(target)
        file = str(tmp_path / "inner" / name)
        assert files(file).read(file).text is None


def test_a_project_behind_a_linked_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("x")
    (tmp_path / "link").symlink_to("real")
    file = str(tmp_path / "link" / "train.py")
    assert files(file).read(file).text == "x"


def test_frames_are_looked_for_in_the_folder_of_the_recorded_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    frames = "main | 50 60 | train.py(3): step"
    assert files(frames=frames, cwd=str(tmp_path)).read("train.py").text == "x"
    assert files(frames=frames).read("train.py").reason == NOT_HERE
    assert files(frames=frames, cwd="relative").read("train.py").reason == NOT_HERE


@pytest.mark.parametrize("name", ["../secret.py", "a/../../secret.py", "link/secret.py"])
def test_no_frame_leads_out_of_that_folder(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    (project / "a").mkdir(parents=True)
    (tmp_path / "secret.py").write_text("secret")
    (project / "link").symlink_to(tmp_path)
    found = files(frames=f"main | 50 60 | {name}(3): step", cwd=str(project))
    assert found.read(name).text is None


@pytest.mark.parametrize("name", ["/nowhere/train.py", "/tmp", "a\0b.py", "/" + "x" * 5000 + ".py"])
def test_what_is_no_file_is_not_here(name: str) -> None:
    assert files(name).read(name).text is None


def test_a_file_of_megabytes_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "big.py"
    file.write_bytes(b"#" * 2_000_001)
    assert files(str(file)).read(str(file)).reason == "the file is larger than 2,000,000 bytes"


def test_a_file_that_was_edited_since_says_so(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("")
    written = file.stat().st_mtime_ns
    assert files(str(file), created_unix_ns=written - 1).read(str(file)).changed
    assert not files(str(file), created_unix_ns=written + 1).read(str(file)).changed


def test_installed_packages_are_told_from_the_project(tmp_path: Path) -> None:
    found = files("x.py")
    assert found.is_installed("/env/lib/python3.11/site-packages/torch/nn/conv.py")
    assert found.is_installed(f"{sysconfig.get_path('stdlib')}/json/decoder.py")
    assert not found.is_installed(str(tmp_path / "train.py"))


def test_with_a_root_nothing_outside_it_is_read(tmp_path: Path) -> None:
    """Links are resolved before the check, and the trace's own folder does not count."""
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project, other):
        folder.mkdir()
        (folder / "train.py").write_text(folder.name)
    (project / "linked").symlink_to(other)
    names = ("train.py", str(other / "train.py"), str(project / "linked" / "train.py"))
    found = files(*names, root=project, cwd=str(other))
    assert found.read("train.py").text == "project"
    for outside in names[1:]:
        assert found.read(outside).reason == "the file is outside the source folder"
