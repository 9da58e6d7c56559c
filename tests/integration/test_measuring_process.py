"""The process that measures: what it survives, and what it is ended by."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stepscope.models.batch_size.entry import open_entry
from stepscope.models.batch_size.worker_process import Cancelled, Worker
from stepscope.record.batch_size.request import Effort
from stepscope.record.batch_size.worker import _sleeps, _wait_for_threads

ENTRY = """\
import os, time
from pathlib import Path

import torch


def stepscope_model_provider():
    return torch.nn.Linear(4, 4)


def stepscope_input_provider(batch_size=8):
    return (torch.randn(batch_size, 4),)


def stepscope_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print("child of", os.getppid())
    while Path("hang").exists():
        Path("hangs").touch()
        time.sleep(0.01)

    def iteration(x):
        model(x).sum().backward()
        optimizer.step()

    return iteration
"""
EFFORT = Effort(warmup=1, memory=1, least=2, seconds=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(ENTRY)
    return tmp_path


@pytest.fixture
def worker() -> Iterator[Worker]:
    with closing(Worker()) as worker:
        yield worker


def measure(worker: Worker, folder: Path) -> str:
    """The process that the measuring one was forked from."""
    entry = open_entry(folder / "train.py", folder=folder)
    reply = worker.run(entry.request(8, effort=EFFORT, timeout_s=120.0))
    assert reply.facts["outcome"] == "measured", reply.facts
    return reply.output


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_stopping_a_measurement_keeps_the_process_that_has_imported_torch(
    worker: Worker, folder: Path
) -> None:
    before = measure(worker, folder)
    (folder / "hang").touch()
    stopper = threading.Thread(target=stop_once_it_hangs, args=(worker, folder))
    stopper.start()
    with pytest.raises(Cancelled):
        measure(worker, folder)
    stopper.join()
    (folder / "hang").unlink()
    worker.cancel.clear()
    assert measure(worker, folder) == before


def stop_once_it_hangs(worker: Worker, folder: Path) -> None:
    while not (folder / "hangs").exists():
        threading.Event().wait(0.01)
    worker.cancel.set()


def test_an_interpreter_that_greets_is_understood(folder: Path) -> None:
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho "Welcome to this cluster"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with closing(Worker(str(python))) as worker:
        assert "child of" in measure(worker, folder)


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_it_forks_once_no_other_thread_runs() -> None:
    assert not _sleeps(Path("/proc/self/task") / str(threading.get_native_id()))
    assert _sleeps(Path("/proc/self/task/0"))  # there is none
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    _wait_for_threads()
    task = Path("/proc/self/task") / str(thread.native_id)
    while not _sleeps(task):
        pass
    ended.set()
    thread.join()
