from __future__ import annotations

import os
import threading
import zlib
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
    assert cache.entries() == [Path(os.environ["STEPSCOPE_CACHE"]) / key.name]


def test_a_text_is_kept_with_its_checksum(source: Path, cache_folder: Path) -> None:
    key = cache.key_of(source)
    assert cache.fetch_text(key) is None
    cache.keep_text(key, b"sketch")
    assert cache.fetch_text(key) == b"sketch"
    stored = cache_folder / key.name / "text"
    assert stored.read_bytes() == zlib.crc32(b"sketch").to_bytes(4, "little") + b"sketch"
    stored.write_bytes(stored.read_bytes()[:-1])
    assert cache.fetch_text(key) is None
    assert cache.entries() == []
    cache.keep(key, TRACE)
    assert cache.fetch_text(key) is None  # an entry without a text
    assert cache.entries() == [cache_folder / key.name]


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
        cache.key_of(source, b"", b"").name,
        cache.key_of(source, options=b"model").name,
        cache.key_of(source, code=b"2").name,
        cache.key_of(source.with_name("..") / source.parent.name / source.name).name,
    }
    assert len(keys) == 3  # the last is the first by another way


@pytest.mark.parametrize("size", [5, 1 << 14, 200_001, 1_000_000])
def test_the_state_of_a_file_has_eight_samples_and_its_end(size: int, tmp_path: Path) -> None:
    path, content = tmp_path / "file", bytes(range(251)) * (size // 251 + 1)
    path.write_bytes(content[:size])
    places = [*range(0, size, max(size // 8, 1 << 14)), max(size - (1 << 14), 0)]
    samples = [content[place : min(place + (1 << 14), size)] for place in places]
    facts = path.stat()
    times = facts.st_mtime_ns, facts.st_ctime_ns
    assert cache._state(path) == (size, *times, facts.st_ino, b"".join(samples))


@pytest.mark.parametrize(("variable", "limit"), [(None, 10 << 30), ("7", 7), ("much", 10 << 30)])
def test_the_limit_is_that_of_the_environment(
    variable: str | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("STEPSCOPE_CACHE_BYTES", variable)
    assert cache.limit_bytes() == limit


@pytest.mark.parametrize(("chosen", "name"), [("OFF", None), ("here", "here"), ("", "stepscope")])
def test_the_folder_is_that_of_the_environment(
    chosen: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", chosen)
    folder = entry_folder.cache_folder()
    assert (folder and folder.name) == name
    assert folder is None or (len(folder.parts) > 1) == (chosen == "")  # the user's, else as it is written


def test_an_entry_is_written_beside_its_place(tmp_path: Path) -> None:
    with entry_folder.written(tmp_path / "entry") as work:
        (work / "member").write_bytes(b"12345")
        assert (work.parent, work.name[:7]) == (tmp_path, ".entry.")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]
    assert entry_folder.size(tmp_path / "entry") == 5
    entry_folder.remove(tmp_path / "entry")
    entry_folder.remove(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "count", "until_next"), [(1000, 30, (3, 87)), (300, 30, (3, 0)), (200, 17, (2, 3))]
)
def test_room_is_made_for_an_eighth_of_the_limit(
    limit: int, count: int, until_next: tuple[int, int], cache_folder: Path
) -> None:
    """Thirty entries of 10 bytes; then it is looked again after an eighth of their number, or of the rest."""
    for number in range(30):
        cache.keep_text(cache.Key(f"{number:024x}", "0" * 24), b"6 more")
    cache._shrink(cache_folder, limit)
    assert (len(cache.entries()), cache._left[cache_folder]) == (count, until_next)


def test_the_cache_is_looked_at_after_so_many_entries_or_bytes(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    entry.mkdir()
    (entry / "text").write_bytes(b"x" * 60)
    for left, due in [((9, 120), (False, False, True)), ((1, 1000), (False, True, True))]:
        cache._left[tmp_path] = left
        assert tuple(cache._is_look_due(tmp_path, entry) for _ in due) == due


@pytest.mark.parametrize(("now_s", "is_left"), [(3700, True), (3700.5, False)])
def test_what_is_unfinished_for_an_hour_is_abandoned(
    now_s: float, is_left: bool, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = cache_folder / f".{'0' * 24}-{'0' * 24}.x1"
    work.mkdir()
    os.utime(work, (100, 100))
    monkeypatch.setattr(cache.time, "time", lambda: now_s)
    cache._shrink(cache_folder, 1000)
    assert work.exists() is is_left


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


def test_folders_are_renamed_to_hidden_ones_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, renamed, rename = tmp_path / "entry", list[tuple[Path, Path]](), Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: renamed.append((path, to)) or rename(path, to))
    folder.mkdir()
    (folder / "old").touch()
    with entry_folder.written(folder) as work:
        (work / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]
    entry_folder.remove(folder)
    entry_folder.remove(folder)  # what is not there is removed
    assert list(tmp_path.iterdir()) == []
    tried, old, made, last, _ = renamed
    assert tried == made == (work, folder)
    assert (work.parent, work.name[:7]) == (tmp_path, ".entry.")
    for path, trash in (old, last):
        assert (path, trash.name) == (folder, "entry")
        assert (trash.parent.parent, trash.parent.name[:7]) == (tmp_path, ".entry.")
