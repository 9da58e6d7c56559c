from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from examples import assert_same

from stepscope.testing import drawn_trace
from stepscope.trace import cache
from stepscope.trace import cache_folder as entry_folder

TRACE = drawn_trace("main | 0 5 | mm | seq=1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file, 1 MB, whose trace is kept."""
    path = tmp_path / "run.json"
    path.write_bytes(b"x" * 1_000_000)
    return path


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_kept_is_fetched(source: Path) -> None:
    key = cache.key_of(source)
    assert cache.fetch(key) is None
    cache.keep(key, TRACE)
    found = cache.fetch(key)
    assert found is not None
    assert_same(found, TRACE)


def overwrite(path: Path) -> None:
    """One byte in the first sample changes, and all times are set back."""
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"y")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("change", [overwrite, touch, append, replace])
def test_a_changed_file_is_another(change: object, source: Path) -> None:
    before = cache.key_of(source)
    cache.keep(before, TRACE)
    change(source)  # type: ignore[operator]
    after = cache.key_of(source)
    assert (after.file, after.state != before.state) == (before.file, True)
    assert cache.fetch(after) is None


def test_options_and_code_make_another_key(source: Path) -> None:
    keys = {
        cache.key_of(source).name,
        cache.key_of(source, options=b"model").name,
        cache.key_of(source, code=b"2").name,
        cache.key_of(source.with_name("..") / source.parent.name / source.name).name,
    }
    assert len(keys) == 3  # the last is the first by another way


def test_keeping_a_changed_file_drops_its_old_entry(source: Path, cache_folder: Path) -> None:
    cache.keep(cache.key_of(source), TRACE)
    append(source)
    key = cache.key_of(source)
    cache.keep(key, TRACE)
    assert entries(cache_folder) == [key.name]


@pytest.mark.parametrize("member", ["trace.json", "events.arrow"])
def test_a_damaged_entry_is_deleted(member: str, source: Path, cache_folder: Path) -> None:
    key = cache.key_of(source)
    cache.keep(key, TRACE)
    path = cache_folder / key.name / member
    path.write_bytes(path.read_bytes()[:-3])
    assert cache.fetch(key) is None
    assert entries(cache_folder) == []


def test_the_entries_used_longest_ago_go_first(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for number in range(3):
        path = tmp_path / f"{number}.json"
        path.write_text(str(number))
        keys.append(cache.key_of(path))
        cache.keep(keys[-1], TRACE)
        os.utime(cache_folder / keys[-1].name, (number, number))
    assert cache.fetch(keys[0]) is not None  # now used last
    size = entry_folder.size(cache_folder / keys[0].name)
    monkeypatch.setenv("STEPSCOPE_CACHE_BYTES", str(3 * size + size // 2))
    newest = tmp_path / "3.json"
    newest.write_text("3")
    cache.keep(cache.key_of(newest), TRACE)
    kept = [cache.fetch(key) is not None for key in (*keys, cache.key_of(newest))]
    assert kept == [True, False, True, True]


def test_many_entries_are_looked_at_seldom(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at all of them for each that is kept made 10,000 ranks take minutes."""
    seen: list[int] = []
    look = cache._entries

    def counted(folder: Path | None) -> list[tuple[float, int, Path]]:
        entries = look(folder)
        seen.append(len(entries))
        return entries

    monkeypatch.setattr(cache, "_entries", counted)
    for number in range(200):
        path = tmp_path / f"{number}.json"
        path.write_text(str(number))
        cache.keep_text(cache.key_of(path), b"sketch")
    assert (len(entries(cache_folder)), sum(seen) < 10 * 200) == (200, True)  # each time: 20,100


def test_a_full_cache_makes_room_for_more_than_one(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE_BYTES", "1000")
    sizes = []
    for number in range(60):
        path = tmp_path / f"{number}.json"
        path.write_text(str(number))
        cache.keep_text(cache.key_of(path), b"x" * 46)  # 50 with its checksum
        sizes.append(50 * len(entries(cache_folder)))
    assert max(sizes) <= 1000
    assert min(sizes[30:]) >= 850


def test_an_entry_beyond_the_bound_is_not_kept(
    source: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE_BYTES", "10")
    cache.keep(cache.key_of(source), TRACE)
    assert entries(cache_folder) == []


def test_what_a_crash_left_is_cleared(source: Path, cache_folder: Path) -> None:
    key = cache.key_of(source)
    left = cache_folder / f".{key.name}.x1"
    left.mkdir()
    os.utime(left, (0, 0))
    cache.keep(key, TRACE)
    assert entries(cache_folder) == [key.name]


def test_what_others_keep_in_the_folder_is_left_alone(
    source: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$STEPSCOPE_CACHE may well be somebody's home."""
    for name in (".ssh", "photos", "native", "0" * 49):
        (cache_folder / name).mkdir()
        (cache_folder / name / "it").write_bytes(b"x" * 1000)
        os.utime(cache_folder / name, (0, 0))
    monkeypatch.setenv("STEPSCOPE_CACHE_BYTES", "10")
    cache.keep(cache.key_of(source), TRACE)
    assert entries(cache_folder) == sorted([".ssh", "photos", "native", "0" * 49])
    assert cache.entries() == []


def test_off_keeps_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", "off")
    key = cache.key_of(source)
    cache.keep(key, TRACE)
    assert cache.fetch(key) is None
    assert cache.entries() == []


def test_a_folder_that_cannot_be_written_is_no_event(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(source / "inside-a-file"))
    key = cache.key_of(source)
    cache.keep(key, TRACE)
    assert cache.fetch(key) is None


def test_many_at_once_see_the_whole_or_nothing(source: Path) -> None:
    key, seen = cache.key_of(source), []

    def work() -> None:
        for _ in range(10):
            cache.keep(key, TRACE)
            found = cache.fetch(key)
            seen.append(None if found is None else found.events["duration_ns"].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert [one for one in seen if one not in (None, [5000])] == []
    assert cache.fetch(key) is not None
