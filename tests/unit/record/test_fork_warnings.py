"""The warning of Python 3.12 about a fork, where other threads are there for the recorder."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.record import fork_warnings
from stepscope.record.fork_warnings import _OnlyOurThreads

TEXT = "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[_OnlyOurThreads]:
    """With the threads that the test's process has already."""
    ours = _OnlyOurThreads()
    ours.started = set(sorted(fork_warnings._tasks(), key=int)[1:])
    monkeypatch.setattr(fork_warnings, "_ours", ours)
    with warnings.catch_warnings():
        yield ours


@pytest.fixture
def start(ours: _OnlyOurThreads) -> Iterator[Callable[[], None]]:
    """Starts threads of a process that is named as those of `stepscope run` are."""
    end, threads, comm = threading.Event(), list[threading.Thread](), Path("/proc/self/comm")
    name = comm.read_text()
    comm.write_text("stepscope")

    def start() -> None:
        threads.append(threading.Thread(target=end.wait, daemon=True))
        threads[-1].start()

    yield start
    comm.write_text(name)
    end.set()
    for thread in threads:
        thread.join()


def warned() -> bool:
    try:
        warnings.warn_explicit(TEXT, DeprecationWarning, "script.py", 1)
    except DeprecationWarning:
        return True
    return False


def test_a_thread_of_the_recorder_is_not_told(ours: _OnlyOurThreads, start: Callable[[], None]) -> None:
    with fork_warnings.starting_threads():
        start()
    warnings.simplefilter("error")  # of the program
    ours.install()
    assert not warned()
    assert warned()  # the filter is there for one fork


def test_a_thread_of_the_program_is_told(ours: _OnlyOurThreads, start: Callable[[], None]) -> None:
    warnings.simplefilter("error")
    start()
    before = list(warnings.filters)  # type: ignore[attr-defined]
    ours.install()
    assert warned()
    assert warnings.filters == before  # type: ignore[attr-defined]
