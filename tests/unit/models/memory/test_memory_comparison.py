"""What grew between two snapshots whose contents are known."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from model_allocator import MIB, ModelAllocator, frame
from rich.console import Console

from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.models.memory.memory_text import MemoryComparison, MemoryRow, print_memory_comparison

MODEL = "/home/me/project/model.py"


def snapshot(path: Path, sizes: dict[int, int]) -> str:
    """A snapshot in which each line of the model holds so many bytes."""
    allocator = ModelAllocator()
    for line, size in sizes.items():
        allocator.alloc(size, [frame(MODEL, line)])
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return str(path)


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    return [
        snapshot(tmp_path / "before.pickle", {1: 8 * MIB, 2: 4 * MIB, 3: 2 * MIB}),
        snapshot(tmp_path / "after.pickle", {1: 8 * MIB, 2: 16 * MIB, 4: 4 * MIB}),
    ]


def test_lines_that_changed_are_listed_by_their_change(sides: list[str]) -> None:
    result = CliRunner().invoke(stepscope_command, ["diff", *sides, "--json"])
    (device,) = json.loads(result.stdout)["memory"]
    assert (device["before_bytes"], device["after_bytes"]) == (14 * MIB, 28 * MIB)
    rows = [
        (row["name"].split()[0], row["before_bytes"] // MIB, row["after_bytes"] // MIB)
        for row in device["lines"]
    ]
    assert rows == [(f"{MODEL}:2", 4, 16), (f"{MODEL}:4", 0, 4), (f"{MODEL}:3", 2, 0)]


def test_the_text_says_what_grew(sides: list[str]) -> None:
    text = CliRunner().invoke(stepscope_command, ["diff", *sides]).stdout
    assert "peak 14.7 MB before, 29.4 MB after (+14.7 MB)" in text
    assert "+12.6 MB" in text


def test_a_snapshot_compared_with_itself_has_no_rows(sides: list[str]) -> None:
    result = CliRunner().invoke(stepscope_command, ["diff", sides[0], sides[0], "--json"])
    (device,) = json.loads(result.stdout)["memory"]
    assert (device["kinds"], device["modules"], device["lines"]) == ([], [], [])


@pytest.mark.parametrize("width", [80, 120])
def test_amounts_of_modules_with_long_paths_are_shown(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    path = "Model_0." + "Encoder_0." * 12 + "Attention_3"
    print_memory_comparison(
        console, MemoryComparison(0, 0, 5, 7, (), (MemoryRow(path, 5 * MIB, 7 * MIB),), ()), 1
    )
    row = console.file.getvalue().splitlines()[-1].split()  # type: ignore[attr-defined]
    assert row[0].endswith("Encoder_0.Attention_3")
    assert row[1:] == ["5.2", "MB", "7.3", "MB", "+2.1", "MB"]
