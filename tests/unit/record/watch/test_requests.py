"""How `status` and `record` find watched runs, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.record.session import Ending
from stepscope.record.watch.requests import Requests, ask_to_record, recorded, watch_file_of, watched_runs
from stepscope.record.watch.watch_session import WatchSession

ME = os.getpid()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "requests"
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(path))
    return path


@pytest.fixture
def requests(folder: Path) -> Requests:
    return Requests(Path("/runs/train.watch"))


def test_a_run_is_found_until_it_ends(requests: Requests, folder: Path) -> None:
    assert watched_runs() == {ME: Path("/runs/train.watch")}
    assert folder.stat().st_mode & 0o777 == 0o700
    requests.close()
    assert watched_runs() == {}
    assert list(folder.iterdir()) == []


def test_a_request_is_answered_once(requests: Requests) -> None:
    assert requests.wanted() == 0
    ask_to_record(ME, 3)
    assert requests.wanted() == 3
    assert recorded(ME) is None
    requests.answer({"message": "recorded steps 2 to 4", "file": "x.stepscope"})
    assert requests.wanted() == 0
    assert recorded(ME) == {"message": "recorded steps 2 to 4", "file": "x.stepscope"}


def test_a_request_to_a_run_that_ends_first_is_answered(requests: Requests) -> None:
    ask_to_record(ME, 3)
    assert recorded(ME) is None
    requests.close()
    assert recorded(ME) == {"message": "its run ended before", "file": ""}


def test_a_second_request_at_once_is_refused(requests: Requests) -> None:
    ask_to_record(ME, 3)
    with pytest.raises(StepscopeError, match=f"process {ME} is recording already"):
        ask_to_record(ME, 5)
    assert requests.wanted() == 3


@pytest.mark.parametrize(
    ("text", "steps"), [("__import__('os')", 0), ("-1", 0), ("", 0), ("99999", 1000), ("9" * 9999, 0)]
)
def test_a_request_is_a_number_and_nothing_else(
    requests: Requests, folder: Path, text: str, steps: int
) -> None:
    (folder / f"{ME}.record").write_text(text)
    assert requests.wanted() == steps


def test_a_pipe_or_a_device_in_place_of_a_request_holds_up_nothing(requests: Requests, folder: Path) -> None:
    request = folder / f"{ME}.record"
    os.mkfifo(request)
    assert requests.wanted() == 0
    request.unlink()
    request.symlink_to("/dev/zero")
    assert requests.wanted() == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": 1}', "[" * 100_000, "{", "\xff"])
def test_a_file_that_no_run_wrote_is_passed_over(requests: Requests, folder: Path, text: str) -> None:
    (folder / "1.watch").write_text(text, "latin-1")
    os.mkfifo(folder / f"{os.getppid()}.watch")
    assert watched_runs() == {ME: Path("/runs/train.watch")}
    (folder / f"{ME}.recorded").write_text(text, "latin-1")
    with pytest.raises(StepscopeError, match="does not say what a watched run says"):
        recorded(ME)


def test_files_of_others_stay_where_they_are(requests: Requests, folder: Path) -> None:
    """A folder that somebody names may be one of pictures."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = {folder / f"{ended.pid}.png", folder / f"{ME}.png"}
    for path in others:
        path.touch()
    watched_runs()
    requests.close()
    assert set(folder.iterdir()) == others


def test_processes_that_cannot_be_asked(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(StepscopeError, match=f"process {ended.pid} does not exist"):
        watch_file_of(ended.pid)
    with pytest.raises(StepscopeError, match=f"process {ME} is not watched"):
        ask_to_record(ME, 3)


def test_what_a_killed_run_left_is_removed(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder.mkdir(mode=0o700)
    (folder / f"{ended.pid}.watch").write_text('{"file": "/x"}')
    assert watched_runs() == {}
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(StepscopeError, match="not a folder of this user alone"):
        watched_runs()


def test_a_link_to_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(StepscopeError, match="not a folder of this user alone"):
        watched_runs()


def test_another_users_folder_and_processes_are_refused(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stepscope.record.watch.requests.os.getuid", lambda: 12345)
    with pytest.raises(StepscopeError, match="not a folder of this user alone"):
        ask_to_record(ME, 3)


def test_a_process_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("stepscope.base.unfinished_files.os.kill", refuse)
    with pytest.raises(StepscopeError, match="process 1 belongs to another user"):
        ask_to_record(1, 3)


def test_a_request_that_cannot_be_met_is_answered(folder: Path, tmp_path: Path) -> None:
    """The program runs a profiler of its own meanwhile."""
    torch = pytest.importorskip("torch")
    session = WatchSession.of_program("train", ["train.py"], tmp_path / "train.watch")
    session.attach()
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    try:
        ask_to_record(ME, 3)
        session._flush_after_ns = 0
        session._flush_now_and_then()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            for _ in range(6):
                weight.sum().backward()
                optimizer.step()
        answer = recorded(ME)
    finally:
        session.finish(Ending())
    assert answer is not None
    assert answer["message"].startswith("recorded 0 steps; stepscope could not record everything: ")
    assert "the script runs its own profiler" in answer["message"]
