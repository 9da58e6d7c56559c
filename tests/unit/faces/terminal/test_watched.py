"""What `stepscope` prints of watched runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from stepscope.base import watch_format as layout
from stepscope.base.numbers import duration
from stepscope.faces.terminal import status
from stepscope.faces.terminal.commands import stepscope
from stepscope.record.unreplaced import time
from stepscope.record.watch import requests
from stepscope.record.watch.watch_file import WatchFile

S = 1_000_000_000
PLACE = {
    "kind": "checkpoint",
    "function": "save",
    "file": "/x/train.py",
    "line": 30,
    "count": 2,
    "total_ns": 3 * S,
}


def call(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output."""
    result = CliRunner().invoke(stepscope, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hundred steps of 20 ms; ten of them wait 30 ms longer for data."""
    at_ns = 0
    file = WatchFile(tmp_path / "train.watch")
    for number in range(100):
        waits = 30.0 if 60 <= number < 70 else 0.0
        wall_ns = 20_000_000 + (number % 7) * 10_000 + round(waits * 1e6)
        times = {"input": 1 + waits, "backward": 9.0, "cpu": 19.0}
        file.add_step((number, at_ns, wall_ns, *(times.get(name, 0.0) for name in layout.TIMES)))
        at_ns += wall_ns
    monkeypatch.setattr(time, "time_ns", lambda: 5 * S + at_ns)
    about = {
        "created_unix_ns": S,
        "begun_unix_ns": 5 * S,
        "command": "train.py --lr 1",
        "places": [PLACE],
        "processes": {"actor": 4},
    }
    file.put_text(
        {**about, "outcome": "raised", "out_of_memory": "cuda:0 at train.py:9; held: weights 2.00 GiB"}
    )
    lines = [
        ("main", "/x/train.py", 9, ""),
        ("rollout", "/x/actors.py", 5, "actor"),
        ("log", "/x/train.py", 7, ""),
    ]
    # Of every five samples one is of an actor, which never waits; the trainer does in its log.
    file.put_samples(lines, [(at * 1_000_000, max(2 - at % 5, 0), at % 5 == 0) for at in range(100)])
    file.flush()
    return file.path


def test_a_file_of_any_name_is_known_by_its_first_bytes(watched: Path) -> None:
    other = watched.rename(watched.with_name("run.stepscope"))
    code, text = call("report", other)
    assert (code, "time lost" in text) == (0, True)


def test_the_bill(watched: Path) -> None:
    code, out = call(watched)
    assert code == 0
    assert out.splitlines() == [
        "train.py --lr 1: 100 steps in 6.3 s; raised",
        "out of memory on cuda:0 at train.py:9; held: weights 2.00 GiB",
        "a usual step takes 20 ms; mean ms of each tenth: 20 20 20 20 20 20 50 20 20 20",
        "time lost (causes may overlap):",
        "          4 s   63.5%  start, with the first step",
        "          3 s   47.6%  checkpoints, save at train.py:30, 2 times",
        "        0.4 s    6.3%  waiting for data",
        "Without the first 3 losses the run would take 1.9 s instead of 6.3 s.",
        "lines of the training thread, by samples:",
        "       1.55 s   24.6%  main at train.py:9",
        "      0.751 s   11.9%  log at train.py:7",
        "processes, by samples of their main threads; actor limits the run:",
        "  actor × 4: waits 0.0%; works most at rollout at actors.py:5",
        "  training: waits 32.6%, most at log at train.py:7; works most at main at train.py:9",
        "steps 60 to 69 took 2.5 times the usual, 0.3 s in all: waiting for data +30 ms",
    ]


def test_the_bill_as_json(watched: Path) -> None:
    code, out = call("report", watched, "--json")
    (bill,) = json.loads(out)["ranks"]
    assert code == 0
    assert bill["losses"][0]["cause"] == "start, with the first step"
    assert [(slow["first"], slow["last"]) for slow in bill["slow"]] == [(60, 69)]


def test_a_folder_with_two_files_of_one_rank_names_them(watched: Path) -> None:
    (watched.parent / "rank1.watch").write_bytes(watched.read_bytes())
    for words in (["ranks", watched.parent], [watched.parent]):
        code, out = call(*words)
        assert code == 0
        assert "rank 0 (rank1.watch): train.py --lr 1: 100 steps" in out
        assert f"rank 0 ({watched.name}): train.py --lr 1: 100 steps" in out


def test_one_rank_of_a_job_is_shown_alone(watched: Path) -> None:
    other = WatchFile(watched.with_name("rank1.watch"))
    other.put_text({"created_unix_ns": S, "begun_unix_ns": 5 * S, "rank": 1, "command": "of rank 1"})
    other.flush()
    code, out = call(watched.parent, "--rank", "1")
    assert (code, out.partition(":")[0]) == (0, "of rank 1")
    (bill,) = json.loads(call(watched.parent, "--rank", "0", "--json")[1])["ranks"]
    assert bill["facts"]["rank"] == 0
    assert call(watched.parent, "--rank", "2") == (2, "Error: there is no rank 2; the run has 0, 1\n")


def test_the_page_of_a_watched_run_shows_it_alone(watched: Path) -> None:
    code, out = call("view", watched, watched)
    assert (code, f"{watched} is of a watched run; open it alone" in out) == (2, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("report FILE --svg OUT", "a watched run has no --svg; use --html"),
        ("report FILE --html OUT --redact", "a watched run has no --redact; use: stepscope redact"),
        ("report FILE --html OUT --compare FILE", "a watched run has no --compare"),
        ("report FILE --html OUT --whatif amp", "a watched run has no --whatif"),
        ("report FILE --ncu", "a watched run has no --ncu"),
        ("report FILE --step 3", "a watched run has no --step"),
        ("ranks FILE --html OUT", "a watched run has no sketches; for its page use: stepscope view"),
        ("ranks FILE -o OUT", "a watched run has no sketches"),
    ],
)
def test_what_a_watched_run_cannot_have_is_refused(watched: Path, words: str, reason: str) -> None:
    names = {"FILE": watched, "OUT": watched.parent / "out"}
    code, out = call(*(names.get(word, word) for word in words.split()))
    assert (code, reason in out, names["OUT"].exists()) == (2, True, False)


def test_other_commands_refuse_a_watched_run_in_one_line(watched: Path) -> None:
    code, out = call("analyze", watched)
    assert code == 2
    assert len(out.splitlines()) == 1


def test_the_status_of_a_watched_run(watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(tmp_path / "requests"))
    assert "no watched run on this machine" in call("status")[1]
    requests.Requests(watched)
    code, out = call("status")
    assert code == 0
    assert out.startswith(f"{os.getpid()}: step 99 ended ")
    assert "the last 100 steps took 23.03 ms on average, 50.06 ms at most, 17% waiting for data" in out
    assert call("status", str(os.getpid()))[1].partition("; the last")[2] == out.partition("; the last")[2]
    (run,) = json.loads(call("status", "--json")[1])
    assert (run["pid"], run["file"], run["last_minute"]["steps"]) == (os.getpid(), str(watched), 100)
    assert round(run["last_minute"]["shares"]["waiting for data"], 2) == 0.17


def test_a_run_whose_file_was_removed_hides_no_other(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {1: tmp_path / "gone.watch", 2: watched}
    monkeypatch.setattr(requests, "watched_runs", lambda: runs)
    monkeypatch.setattr(requests, "watch_file_of", runs.get)
    code, out = call("status")
    assert (code, [line.partition(" ended")[0] for line in out.splitlines()]) == (0, ["2: step 99"])
    assert call("status", "1") == (2, f"Error: cannot read {runs[1]}: No such file or directory\n")


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ({7: "a.stepscope"}, 0, "7: done; next: stepscope report a.stepscope\n"),
        ({7: ""}, 2, "Error: process 7 recorded nothing: done\n"),
        (
            {7: "", 8: "b.stepscope"},
            2,
            "8: done; next: stepscope report b.stepscope\nError: process 7 recorded nothing: done\n",
        ),
    ],
)
def test_what_became_of_requests(
    files: dict[int, str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ask_to_record", lambda pid, steps: None)
    monkeypatch.setattr(requests, "recorded", lambda pid: {"message": "done", "file": files[pid]})
    assert call("record", *map(str, files)) == (code, said)


def test_a_run_that_no_longer_trains_is_not_waited_for(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is written until ten minutes after the request; the next request is not refused."""
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(tmp_path / "requests"))
    run, pid, begun_s = requests.Requests(watched), os.getpid(), watched.stat().st_mtime
    now_s = begun_s

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += 50
        os.utime(watched, (now_s, min(now_s, begun_s + 600)))

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=sleep, time=lambda: now_s))
    for _ in range(2):
        said = f"Error: process {pid} recorded nothing: it has not trained for 5 min\n"
        assert call("record", str(pid)) == (2, said)
        assert run.wanted() == 0
    assert now_s == pytest.approx(begun_s + 600 + 2 * 300, abs=150)


@pytest.mark.parametrize("command", ["status", "record"])
def test_a_process_that_does_not_exist(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(tmp_path / "requests"))
    assert call(command, "999999999") == (2, "Error: process 999999999 does not exist\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "0.0123 s"), (59, "59 s"), (90, "1.5 min"), (21_600, "6 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
