"""When files are read by processes, and what a process that ends takes with it: its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pytest

from stepscope.base import parallel
from stepscope.base.parallel import on_each, own_command, spawned
from stepscope.errors import IngestError


@pytest.mark.parametrize(
    ("files", "size", "processes"), [(100, 100, 0), (600, 100, 2), (10_000, 100, 4), (2, 40 << 20, 2)]
)
def test_many_tiny_files_are_worth_processes_as_a_few_large_ones_are(
    files: int, size: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 4)
    assert parallel._processes(dict.fromkeys(range(files), size)) == processes


def read(name: str) -> str:
    """A reader that some files crash."""
    if name.startswith("bad"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("odd"):
        raise IngestError(f"{name}: odd")
    return name.upper()


def outcomes(names: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    done: list[str] = []
    results = on_each(dict.fromkeys(names, 20 << 20), read, None, lambda name, _: done.append(name))
    assert sorted(done) == sorted(names)
    return {name: str(result) for name, result in results.items()}


@pytest.mark.main
def test_a_file_that_ends_its_process_is_said_to_be_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcomes(["a", "odd", "bad", "b", "c"], monkeypatch) == {
        "a": "A",
        "odd": "odd: odd",
        "bad": "bad: the process that read it crashed or was killed, possibly for lack of memory",
        "b": "B",
        "c": "C",
    }


@pytest.mark.full
def test_many_such_files_are_each_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{'bad' if number % 4 == 1 else 'good'}{number}" for number in range(12)]
    results = outcomes(names, monkeypatch)
    assert list(results) == names
    assert all(("crashed" in text) == name.startswith("bad") for name, text in results.items())


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of a stranger, named as Python's own, in the folder that the user is in."""
    for name in ("json", "runpy", "multiprocessing", "tempfile"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nraise SystemExit(7)\n")
    monkeypatch.chdir(folder)
    return folder / "ran"


@pytest.mark.main
def test_a_module_of_ours_takes_none_of_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = plant(tmp_path, monkeypatch)
    done = subprocess.run(own_command("json.tool"), input="[1]", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), ran.exists()) == (0, ["[", "1", "]"], False)


@pytest.mark.main
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no way to leave the folder out")
def test_processes_take_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = plant(tmp_path, monkeypatch)
    with spawned(1) as pool:
        assert (pool.submit(abs, -1).result(), ran.exists()) == (1, False)
    assert not os.environ.get("PYTHONSAFEPATH")


def test_no_process_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "spawned", lambda count: Dead())
    with pytest.raises(IngestError, match="no process can be started"):
        outcomes(["a", "b"], monkeypatch)


class Dead(Executor):
    """A pool whose processes never start."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        raise BrokenExecutor
