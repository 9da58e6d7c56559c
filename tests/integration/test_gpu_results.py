"""What the kit that measures on a GPU brings home, and what is kept of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.accuracy import BEGIN, END, NOTHING, PAGE, devices, written
from benchmarks.gpu.index import index
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.parts.captures import keep_below
from benchmarks.gpu.places import RESULTS
from benchmarks.gpu.setting import Unavailable
from benchmarks.gpu.sitting import SITTINGS, pack
from gpu_kit import QUICK, ROOT, kit

# -- what is carried home


def test_sittings_take_every_part_once():
    parts = [part for sitting in SITTINGS.values() for part in sitting]
    assert sorted(parts) == sorted(PARTS)


def test_results_are_packed_in_pieces_that_go_together_again(tmp_path):
    results, folder, home = (tmp_path / name for name in ("results", "folder", "home"))
    (results / "d" / "captures").mkdir(parents=True)
    content = os.urandom(50_000)
    (results / "d" / "captures" / "a.stepscope").write_bytes(content)
    folder.mkdir()
    for size in (9_000, 20_000):  # the second has fewer pieces, and leaves none of the first
        pieces = pack(results, folder, most=size)
        assert sorted(folder.iterdir()) == pieces
        assert max(piece.stat().st_size for piece in pieces) <= size
    whole = b"".join(piece.read_bytes() for piece in pieces)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        archive.extractall(home, filter="data")
    assert (home / "d" / "captures" / "a.stepscope").read_bytes() == content


def test_a_sitting_leaves_its_results_and_what_was_said(tmp_path):
    done = kit(
        "2",
        tmp_path / "folder",
        *QUICK,
        "--out",
        tmp_path / "r" / "cpu",
        "--minutes",
        "0",
        "--no-wheels",
        module="benchmarks.gpu.sitting",
    )
    assert done.returncode == 1
    said = (tmp_path / "folder" / "sitting2.log").read_text()
    assert [line.split()[0] for line in said.splitlines()] == list(SITTINGS["2"])
    assert said in done.stdout
    assert (tmp_path / "folder" / "results.tar.00").stat().st_size > 0


# -- what is kept


def test_a_capture_that_there_is_no_room_for_is_not_kept(tmp_path):
    first, second = tmp_path / "a.stepscope", tmp_path / "b.stepscope"
    first.write_bytes(bytes(60))
    keep_below(100, first)
    second.write_bytes(bytes(50))
    with pytest.raises(Unavailable, match="it takes 50 bytes, and 40 of 100 are left"):
        keep_below(100, second)
    assert (first.exists(), second.exists()) == (True, False)


def test_git_keeps_every_capture_of_a_device():
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    for folder in ("captures", "stalls"):
        path = f"benchmarks/gpu/results/d/{folder}/a.stepscope"
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 1


def test_the_page_of_results_is_up_to_date():
    assert (RESULTS / "README.md").read_text() == index(RESULTS)


def test_where_nothing_was_measured_the_page_says_so(tmp_path):
    assert "No results yet." in index(tmp_path)


def test_the_wheels_are_those_that_stepscope_needs_and_are_not_there():
    pytest.importorskip("tomllib")
    from benchmarks.gpu.prepare_wheels import applies, download_command, missing
    from packaging.requirements import Requirement

    names = {requirement.split(">")[0] for requirement in missing({"numpy", "rich"}, "3.12")}
    assert {"msgspec", "duckdb", "pyarrow"} <= names
    assert names.isdisjoint({"numpy", "rich", "torch", "pygments"})
    command = download_command(sorted(names), "3.12", Path("wheels"))
    assert "--python-version=3.12" in command
    assert "--no-deps" in command
    assert not any("msgspec" in name for name in missing({"msgspec"}, "3.12"))
    only_before = Requirement("tomli; python_version < '3.11'")
    assert [applies(only_before, python) for python in ("3.10", "3.12")] == [True, False]


def test_the_page_of_accuracy_has_a_place_for_what_is_measured():
    page = PAGE.read_text()
    between = page.partition(BEGIN)[2].partition(END)[0]
    assert between
    assert (between == NOTHING) == (not list(devices()))
    assert written(page, between) == page
    assert f"{BEGIN}a table\n{END}" in written(page, "a table\n")


def test_without_its_marks_the_page_is_left_alone():
    with pytest.raises(ValueError, match="expected the lines"):
        written("# Accuracy\n", "a table\n")
