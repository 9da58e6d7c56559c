"""The file of a watched run: what is written is read, also while it is written and after a kill."""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from stepscope.base import watch_format as layout
from stepscope.errors import CaptureError, IngestError
from stepscope.facts.watched import last_minute
from stepscope.read.watched_run import read_watched_run
from stepscope.record.capture_file import check_target
from stepscope.record.watch import watch_file
from stepscope.record.watch.step_log import StepLog
from stepscope.record.watch.watch_file import Vector, WatchFile

FACTS = {"begun_unix_ns": 5, "created_unix_ns": 1, "command": "train.py", "rank": 3, "places": []}


def step(number: int, wall_ms: float = 10, **ms: float) -> Vector:
    times = (ms.get(name, 0.0) for name in layout.TIMES)
    return number, number * 10_000_000, round(wall_ms * 1e6), *times


@pytest.fixture
def file(tmp_path: Path) -> WatchFile:
    made = WatchFile(tmp_path / "train.watch")
    made.put_text(FACTS)
    made.flush()
    return made


def test_steps_their_means_and_facts_are_read_before_the_end(file: WatchFile) -> None:
    file.add_step(step(0, 10, input=2.5))
    file.add_step(step(1, 30, input=7.5, gc=1))
    file.flush()
    run = read_watched_run(file.path)
    assert run.steps["step"].tolist() == [0, 1]
    assert run.steps["wall_ns"].tolist() == [10_000_000, 30_000_000]
    assert run.steps["input"].tolist() == [2.5, 7.5]
    assert [run.totals[name].item() for name in ("step", "wall_ns", "input")] == [2, 40_000_000, 5]
    assert (run.facts.command, run.facts.rank, run.facts.outcome) == ("train.py", 3, "")


def test_the_size_is_constant_and_the_newest_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "KEPT_STEPS", 8)
    samples_at = layout.STEPS_AT + 8 * layout.ROW_BYTES
    monkeypatch.setattr(layout, "SAMPLES_AT", (samples_at, samples_at + layout.SAMPLES_BYTES))
    monkeypatch.setattr(layout, "DEVICE_AT", samples_at + 2 * layout.SAMPLES_BYTES)
    device_bytes = 8 * len(layout.DEVICE) * layout.MOST_DEVICE_ROWS
    monkeypatch.setattr(layout, "FILE_BYTES", layout.DEVICE_AT + device_bytes)
    file = WatchFile(tmp_path / "long.watch")
    file.put_text(FACTS)
    for number in range(20):
        file.add_step(step(number))
        file.flush()
    run = read_watched_run(file.path)
    assert run.steps["step"].tolist() == [*range(12, 20)]
    assert run.totals["step"] == 20
    assert file.path.stat().st_size == layout.FILE_BYTES


def test_a_million_steps_are_at_most_20_MB() -> None:
    assert layout.FILE_BYTES <= 20e6


@pytest.mark.full
def test_memory_is_constant_over_100_000_steps_and_the_file_keeps_its_size(file: WatchFile) -> None:
    log = StepLog(file.add_step, file.flush, lambda error: pytest.fail(str(error)))
    steps, held = 100_000, []
    tracemalloc.start()
    for number in range(steps + 1):
        log.end_jax_step()
        if number % 20_000 == 10_000:
            log.count_noted()
            gc.collect()  # also of what Python keeps to use again: more, the more steps were counted at once
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    log.count_noted()
    log.clocks.remove()
    assert max(held) - held[0] < 50_000  # bytes: half of one a step
    assert read_watched_run(file.path).totals["step"] == steps
    assert file.path.stat().st_blocks * 512 < layout.STEPS_AT + 1.1 * steps * layout.ROW_BYTES


@pytest.mark.parametrize(
    ("begin_ns", "wall_ns"), [(-(2**63), 1), (2**63 - 1, 1), (1, 2**63 - 1), (1, 0), (1, -5)]
)
def test_steps_that_no_run_has_are_left_out(file: WatchFile, begin_ns: int, wall_ns: int) -> None:
    file._sums = [0.0] * len(layout.FIELDS)
    file._pending.append((layout.STEPS_AT, struct.pack(layout.ROW, 0, begin_ns, wall_ns, *step(0)[3:])))
    file._steps = 1
    file.add_step(step(1))
    file.flush()
    run = read_watched_run(file.path)
    assert run.steps["step"].tolist() == [1]
    assert last_minute(run, 10**18) is not None


def test_names_that_are_no_text_are_kept_as_far_as_they_are(file: WatchFile) -> None:
    file.put_text({**FACTS, "command": "train\udcff.py"})
    file.put_samples([("main", "/home/\udcff/train.py", 3, "")], [(5, 0, 0)])
    file.flush()
    run = read_watched_run(file.path)
    assert (run.facts.command, run.lines[0].file) == ("train?.py", "/home/?/train.py")


def test_times_that_no_run_has_count_for_nothing(file: WatchFile) -> None:
    file.add_step(step(0, input=float("nan"), gc=float("inf"), backward=-1, compile=2))
    file.flush()
    (row,) = read_watched_run(file.path).steps
    assert [row[name].item() for name in ("input", "gc", "backward", "compile")] == [0, 0, 0, 2]


def test_a_file_of_a_terabyte_is_read_as_far_as_a_run_writes(file: WatchFile) -> None:
    file.add_step(step(0))
    file.flush()
    os.truncate(file.path, 1 << 40)
    assert read_watched_run(file.path).steps["step"].tolist() == [0]


def test_after_a_kill_what_was_flushed_is_read(file: WatchFile) -> None:
    file.add_step(step(0))
    file.flush()
    file.add_step(step(1))
    assert read_watched_run(file.path).steps["step"].tolist() == [0]


def test_facts_that_were_being_written_are_taken_from_before(file: WatchFile) -> None:
    file.put_text({**FACTS, "command": "newer"})
    file.flush()
    assert read_watched_run(file.path).facts.command == "newer"
    with file.path.open("r+b") as damaged:
        damaged.seek(layout.TEXTS_AT[0] + 20)
        damaged.write(b"\0\0\0\0")
    assert read_watched_run(file.path).facts.command == "train.py"


@pytest.mark.parametrize("size", [0, 10, 200, layout.TEXTS_AT[0] + 50])
def test_a_copy_that_ends_before_the_facts_is_refused(file: WatchFile, size: int) -> None:
    short = file.path.with_name("short.watch")
    short.write_bytes(file.path.read_bytes()[:size])
    with pytest.raises(IngestError, match=r"short\.watch is (damaged|not the file of a watched run)"):
        read_watched_run(short)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        (layout.TEXTS_AT, json.dumps(FACTS | {"begun_unix_ns": 10**400}).encode()),
        (layout.TEXTS_AT, json.dumps(FACTS | {"processes": {"worker": 2**63}}).encode()),
        (layout.SAMPLES_AT, b"ab"),
        (layout.SAMPLES_AT, b"\xff\xff\xff\xff[]"),
        (layout.SAMPLES_AT, b"\2\0\0\0[]odd"),
    ],
)
def test_texts_that_no_run_writes_are_refused(file: WatchFile, places: tuple[int, int], text: bytes) -> None:
    with file.path.open("r+b") as damaged:
        for place in places:
            damaged.seek(place)
            damaged.write(struct.pack(layout.TEXT, 9, len(text), zlib.crc32(text)) + text)
    with pytest.raises(IngestError, match=r"train\.watch is damaged"):
        read_watched_run(file.path)


def test_a_copy_that_ends_within_the_steps_has_those_before(file: WatchFile) -> None:
    for number in range(3):
        file.add_step(step(number))
    file.flush()
    short = file.path.with_name("short.watch")
    short.write_bytes(file.path.read_bytes()[: layout.STEPS_AT + 2 * layout.ROW_BYTES])
    assert read_watched_run(short).steps["step"].tolist() == [0, 1]


def test_facts_that_are_too_long_lose_places(file: WatchFile) -> None:
    place = {"kind": "evaluation", "function": "f", "file": "x" * 3000, "line": 1, "count": 1, "total_ns": 1}
    file.put_text({**FACTS, "places": [place] * 100})
    file.flush()
    assert 1 < len(read_watched_run(file.path).facts.places) < 100


LINES = [("decode", "data.py", 5, "actor"), ("log", "train.py", 9, "")]


def test_samples_replace_those_before(file: WatchFile) -> None:
    assert len(read_watched_run(file.path).samples) == 0
    for samples in ([(7, 1, 1)], [(7, 1, 0), (8, 0, 1), (9, 1, 0)]):
        file.put_samples(LINES, samples)
        file.flush()
    run = read_watched_run(file.path)
    assert run.lines == LINES
    assert run.samples.tolist() == [(7, 1, 0), (8, 0, 1), (9, 1, 0)]
    with file.path.open("r+b") as damaged:
        damaged.seek(layout.SAMPLES_AT[0] + 20)
        damaged.write(b"\0\0\0\0")
    assert read_watched_run(file.path).samples.tolist() == [(7, 1, 1)]


def test_samples_without_room_are_thinned_out_everywhere(file: WatchFile) -> None:
    file.put_samples(LINES, [(number, number % 3 % 2, 0) for number in range(3 * layout.MOST_SAMPLES // 2)])
    file.flush()
    samples = read_watched_run(file.path).samples
    assert len(samples) == 3 * layout.MOST_SAMPLES // 4
    assert samples["ns"][-1] == 3 * layout.MOST_SAMPLES // 2 - 2


def test_lines_without_room_lose_their_samples(file: WatchFile) -> None:
    file.put_samples(
        [("f", "x" * 30_000, number) for number in range(4)], [(number, number, 0) for number in range(4)]
    )
    file.flush()
    assert read_watched_run(file.path).samples.tolist() == [(0, 0, 0), (1, 1, 0)]


def test_a_removed_file_is_said_at_the_end(file: WatchFile) -> None:
    file.path.unlink()
    file.add_step(step(0))
    file.close()
    assert "is gone" in file.failure


def test_a_full_disk_is_said_at_the_end(file: WatchFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.record.watch.watch_file.os.pwrite", full)
    for number in range(3):
        file.add_step(step(number))
        file.flush()
    file.close()
    assert file.failure == f"{file.path} ends at step 1: No space left on device"


def test_rows_whose_writing_the_program_interrupted_are_written_later(
    file: WatchFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError  # which the system raises, too

    before, write, left = signal.signal(signal.SIGUSR1, late), os.pwrite, [1, 0]

    def interrupted(*words: Any) -> int:
        if left.pop():
            signal.raise_signal(signal.SIGUSR1)
        return write(*words)

    file.add_step(step(0))
    file.add_step(step(1))
    with monkeypatch.context() as patch:
        patch.setattr(watch_file.os, "pwrite", interrupted)
        with pytest.raises(TimeoutError):
            file.flush()
    signal.signal(signal.SIGUSR1, before)
    file.add_step(step(2))
    file.close()
    assert file.failure == ""
    assert read_watched_run(file.path).steps["step"].tolist() == [0, 1, 2]


def test_a_full_disk_at_the_start_leaves_nothing_that_the_next_run_must_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "train.watch"
    with monkeypatch.context() as full:
        full.setattr("stepscope.record.watch.watch_file.os.pwrite", refuse)
        with pytest.raises(CaptureError, match="No space left on device"):
            WatchFile(path)
    check_target(path, layout.is_watched_run)
    assert WatchFile(path).failure == ""


def test_a_file_of_the_program_with_the_same_number_is_left_alone(file: WatchFile, tmp_path: Path) -> None:
    number = file._file
    with (tmp_path / "theirs").open("wb") as theirs:
        os.dup2(theirs.fileno(), number)
        file.add_step(step(0))
        file.close()
        os.close(number)
    assert (tmp_path / "theirs").read_bytes() == b""
    assert "the program closed its file" in file.failure


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CaptureError, match="cannot write"):
        WatchFile(tmp_path / "file" / "train.watch")


def test_facts_of_many_processes_lose_some(file: WatchFile) -> None:
    roles = {f"episode of {number:060}": 1 for number in range(2000)}
    file.put_text({**FACTS, "processes": roles})
    file.flush()
    assert 400 < len(read_watched_run(file.path).facts.processes) < 2000
