from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepscope
import stepscope.read
from stepscope.base import parallel
from stepscope.errors import IngestError
from stepscope.facts.load import _code


def write(path: Path, names: str = "ab", rank: int | None = None, begin_us: int = 0) -> Path:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": begin_us + i, "dur": 1}
        for i, name in enumerate(names)
    ]
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_text(json.dumps({**info, "traceEvents": events}))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were really read, and not taken from the cache."""
    seen: list[str] = []
    read = stepscope.read.read

    def counted(path: Path, *rest: Any) -> Any:
        seen.append(path.name)
        return read(path, *rest)

    monkeypatch.setattr(stepscope.read, "read", counted)
    return seen


def names(trace: stepscope.Trace) -> list[str | None]:
    return list(trace.events.text("name"))


def test_a_file_is_read_and_annotated(tmp_path: Path) -> None:
    trace = stepscope.open(write(tmp_path / "a.json"))
    assert names(trace) == ["a", "b"]
    assert len(trace["steps"]) == 1


def test_of_several_recordings_of_a_process_the_last_is_read(tmp_path: Path) -> None:
    write(tmp_path / "trace_3.json", "ab", begin_us=1_000)
    write(tmp_path / "trace_6.json", "cd", begin_us=2_000)
    trace = stepscope.open(tmp_path)
    assert names(trace) == ["c", "d"]
    assert trace.metadata.ranks == (0,)
    assert (
        "one process wrote several files, one after the other: the last is read; to read another, "
        "give it alone: trace_3.json"
    ) in list(trace["warnings"].text("message"))


def test_a_second_time_it_comes_from_the_cache(tmp_path: Path, reads: list[str]) -> None:
    path = write(tmp_path / "a.json")
    first, second = stepscope.open(path), stepscope.open(str(path))
    assert reads == ["a.json"]
    assert list(second["steps"].rows()) == list(first["steps"].rows())


def test_the_source_is_the_path_given_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepscope.open(write(tmp_path / "a.json"))
    monkeypatch.chdir(tmp_path)
    assert stepscope.open("a.json").metadata.source == "a.json"


def test_a_pipe_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # so that opening it for reading does not wait
    try:
        os.write(writer, b"[]")
        with pytest.raises(IngestError, match="cannot be read: it is a pipe or a device"):
            stepscope.open(pipe)
    finally:
        os.close(writer)


def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    path = write(tmp_path / "a.json")
    stepscope.open(path)
    assert names(stepscope.open(write(path, "xyz"))) == ["x", "y", "z"]
    assert reads == ["a.json", "a.json"]


def test_without_the_cache_nothing_is_kept(tmp_path: Path, reads: list[str], cache_folder: Path) -> None:
    path = write(tmp_path / "a.json")
    for _ in range(2):
        stepscope.open(path, cache=False)
    assert reads == ["a.json", "a.json"]
    assert list(cache_folder.iterdir()) == []


def test_a_model_makes_another_result(tmp_path: Path, reads: list[str]) -> None:
    path, model = write(tmp_path / "a.json"), tmp_path / "model.json"
    stepscope.open(path)
    for name in ("one", "one", "two"):
        model.write_text(json.dumps({"name": name, "class": "Net"}))
        assert stepscope.open(path, model=model).metadata.model["name"] == name
    assert reads == ["a.json"] * 3


def test_changed_code_makes_another_result(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json")
    stepscope.open(path)
    monkeypatch.setattr("stepscope.facts.load._code", lambda packages: b"other")
    stepscope.open(path)
    assert reads == ["a.json", "a.json"]


@pytest.mark.parametrize(
    ("packages", "file"),
    [
        (("read",), "read/chrome/native/decode_events.cpp"),
        (("facts/roofline",), "facts/roofline/data/gpus.json"),
        (("base",), "kernel_names.py"),
    ],
)
def test_compiled_code_data_and_shared_modules_count_as_code(packages: tuple[str, ...], file: str) -> None:
    assert file in _code(packages).decode()


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path, cache_folder: Path) -> None:
    path = write(tmp_path / "a.json")
    stepscope.open(path, progress=lambda done, total: path.touch())
    assert list(cache_folder.iterdir()) == []


def test_progress_reaches_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json")
    told: list[tuple[int, int]] = []
    stepscope.open(path, progress=lambda *bytes_: told.append(bytes_))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_folder_of_ranks_is_one_trace(tmp_path: Path, reads: list[str]) -> None:
    write(tmp_path / "x.json", "ac", rank=1)
    write(tmp_path / "y.json", "bd", rank=0)
    told: list[tuple[int, int]] = []
    trace = stepscope.open(tmp_path, progress=lambda *bytes_: told.append(bytes_))
    assert trace.metadata.ranks == (0, 1)
    assert trace.metadata.source == str(tmp_path)
    assert trace["steps"]["rank"].tolist() == [0, 1]
    assert names(trace) == ["b", "a", "d", "c"]
    assert told[-1][0] == told[-1][1]
    stepscope.open(tmp_path)
    assert sorted(reads) == ["x.json", "y.json"]


def test_ranks_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text('{"weights": [], "ph": 1}')
    trace = stepscope.open(tmp_path)
    assert trace.metadata.ranks == (0,)
    warnings = {row["code"]: row["message"] for row in trace["warnings"].rows()}
    assert "rank1.json: expected a top-level array" in warnings["unreadable_file"]


def test_a_folder_of_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"weights": [], "ph": 1}')
    with pytest.raises(IngestError, match=r"rank0\.json"):
        stepscope.open(tmp_path)


class Recording(Executor):
    """Runs at once and remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(args)
        future: Future[Any] = Future()
        future.set_result(work(*args, **kwargs))
        return future


def test_a_folder_s_files_go_to_the_executor_given(tmp_path: Path) -> None:
    files = [write(tmp_path / f"rank{rank}.json") for rank in range(2)]
    executor = Recording()
    stepscope.open(tmp_path, executor=executor)
    assert executor.given == [(file,) for file in files]


@pytest.mark.main
def test_processes_give_the_same_as_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", "abc"[rank:], rank)
    with ThreadPoolExecutor(1) as here:
        expected = stepscope.open(tmp_path, executor=here, cache=False)
    monkeypatch.setattr(parallel, "_BYTES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    found = stepscope.open(tmp_path, cache=False)
    for name, table in expected.tables.items():
        assert list(found[name].rows()) == list(table.rows())


SCRIPT = """
import sys, stepscope
from stepscope.base import parallel

parallel._BYTES, parallel.os.cpu_count = 1, lambda: 2
print("ranks", *stepscope.open(sys.argv[1], cache=False).metadata.ranks)
"""


@pytest.mark.main
def test_a_script_that_opens_a_folder_is_not_run_again_by_the_processes(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", "ab", rank)
    script = tmp_path / "look.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ranks 0 1\n", "")


class Dying(Recording):
    """An executor whose process has ended."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenExecutor("a process was terminated abruptly"))
        return future


def test_files_are_read_here_where_the_executor_given_has_ended(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json")
    assert stepscope.open(tmp_path, executor=Dying(), cache=False).metadata.ranks == (0,)


def test_eight_real_ranks(traces: Path) -> None:
    trace = stepscope.open(traces / "dlrm_8rank_v100")
    assert trace.metadata.ranks == tuple(range(8))
    assert trace.metadata.world_size == 8
    assert sorted(set(trace["steps"]["rank"].tolist())) == list(range(8))
    assert set(trace["warnings"].text("code")) <= {"launched_before_recording"}


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(IngestError, match="the path is empty"):
        stepscope.open("")


MEMORY = """
import ctypes, sys, threading, stepscope
from stepscope.faces.terminal.source import InputFile
file = sys.argv[1]
{read}
library = ctypes.CDLL(None)
library.fopen.restype, library.malloc_info.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
library.fclose.argtypes = (ctypes.c_void_p,)

def arenas():
    file = library.fopen(sys.argv[2].encode(), b"w")
    library.malloc_info(0, file)
    library.fclose(file)
    return open(sys.argv[2]).read().count("<heap ")

def allocate():
    library.malloc(ctypes.c_size_t(1000))
    together.wait()

before, together = arenas(), threading.Barrier(5)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
together.wait()
print(arenas() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no arenas")
@pytest.mark.parametrize(
    ("read", "own_arenas"),
    [
        ("InputFile(file, None, as_recorded=False, cache=False).open()", False),
        ("stepscope.open(file, cache=False)", True),  # the process is the user's
    ],
)
def test_threads_of_a_command_use_the_memory_that_others_freed(
    read: str, own_arenas: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", MEMORY.replace("{read}", read), str(write(tmp_path / "a.json"))]
    printed = subprocess.run([*command, str(tmp_path / "arenas")], capture_output=True, text=True, check=True)
    assert (int(printed.stdout) > 0) == own_arenas
