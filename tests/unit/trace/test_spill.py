"""Large arrays lie in files without a name, and a trace is the same with them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stepscope.base.arrays import Array
from stepscope.trace import spill
from stepscope.trace.columns import GrowingArray, constant
from stepscope.trace.spill import SpillFile, copy_of, joined, spilled

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="arrays stay in memory")


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of 1000 bytes count as large."""
    monkeypatch.setattr(spill, "LEAST_BYTES", 1000)


def lies_in_a_file(values: Array) -> bool:
    owner = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner.obj if isinstance(owner, memoryview) else owner, SpillFile)


def test_large_values_move_to_a_file_and_small_ones_stay() -> None:
    large, small = np.arange(1000), np.arange(10)
    found = spilled(large)
    assert lies_in_a_file(found)
    np.testing.assert_array_equal(found, large)
    assert found.dtype == large.dtype
    assert spilled(small) is small


@pytest.mark.parametrize("size", [999, 5000])
def test_a_copy_of_a_file_outlives_it(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with path.open("rb") as file:
        copy = copy_of(file)
    os.truncate(path, 0)  # a mapping of it would end the process now
    assert copy[:] == content
    assert isinstance(copy, SpillFile) == (size > 1000)


def test_of_a_file_that_is_shortened_meanwhile_the_rest_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "_PIECE_BYTES", 2000)
    monkeypatch.setattr(SpillFile, "release", lambda self: os.truncate(path, 3000))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"x" * 5000)
    with path.open("rb", buffering=0) as file:
        assert copy_of(file)[:] == b"x" * 3000 + bytes(2000)  # type: ignore[arg-type]


def test_what_is_in_a_file_or_constant_is_not_copied() -> None:
    found = spilled(np.arange(1000))
    assert spilled(found) is found
    part = found[:500]
    assert spilled(part) is part
    column = constant(0, 1000, np.int64)
    assert spilled(column) is column


def test_a_growing_array_moves_to_a_file_when_it_is_large() -> None:
    array = GrowingArray(np.int32)
    for first in range(0, 100_000, 1000):
        array.append(np.arange(first, first + 1000, dtype=np.int32))
    found = array.finished()
    assert lies_in_a_file(found)
    np.testing.assert_array_equal(found, np.arange(100_000))


def test_parts_are_joined_in_a_file() -> None:
    parts = [np.arange(500, dtype=np.int32), np.arange(7, dtype=np.int32)]
    found = joined(parts, np.int32)
    assert lies_in_a_file(found)
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert joined([], np.int32).tolist() == []


def test_no_file_is_seen(cache_folder: Path) -> None:
    kept = spilled(np.arange(1000))
    assert lies_in_a_file(kept)
    assert list(cache_folder.iterdir()) == []


def test_files_lie_in_the_cache_or_where_temporary_ones_do(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeper = cache_folder / "not" / "yet"
    monkeypatch.setenv("STEPSCOPE_CACHE", str(deeper))
    assert (spill._folder(), deeper.is_dir()) == (str(deeper), True)
    assert spill._folder() == str(deeper)
    monkeypatch.setenv("STEPSCOPE_CACHE", "off")
    assert spill._folder() is None
    assert lies_in_a_file(spilled(np.arange(1000)))


@pytest.mark.parametrize(("rows", "is_large"), [(124, False), (125, True)])
def test_so_many_bytes_are_large(rows: int, is_large: bool) -> None:
    """A view of memory counts as well, and what it is a view of."""
    assert lies_in_a_file(spilled(np.arange(rows))) is is_large
    assert lies_in_a_file(spilled(np.arange(rows + 5)[5:])) is is_large
    assert lies_in_a_file(joined([np.arange(rows)], np.int64)) is is_large
    assert joined([np.arange(3)], np.int32).dtype == np.int32
    assert (SpillFile.of(8 * rows) is not None) is is_large


def test_a_file_that_grows_keeps_its_content() -> None:
    memory = SpillFile.of(1000)
    assert memory is not None
    memory[:3] = b"abc"
    memory.release()
    memory.resize(5000)
    assert (len(memory), memory[:3], memory[4999:]) == (5000, b"abc", b"\0")


def test_without_room_on_the_disk_arrays_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    large = np.arange(1000)
    assert spilled(large) is large
    array = GrowingArray(np.int64)
    array.append(large)
    assert array.finished().tolist() == large.tolist()


def test_a_disk_that_fills_up_as_an_array_grows_moves_it_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    array = GrowingArray(np.int64)
    array.append(np.arange(100_000))

    def full(handle: int, offset: int, size: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    array.append(np.arange(100_000, 300_000))
    found = array.finished()
    assert not lies_in_a_file(found)
    np.testing.assert_array_equal(found, np.arange(300_000))
