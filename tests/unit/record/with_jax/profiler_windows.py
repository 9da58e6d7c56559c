"""Windows of XLA's profiler, with an extension that only notes what it is asked for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src.lib import _profiler

from stepscope.record.contexts import jax_windows as module
from stepscope.record.contexts.jax_windows import ProfilerWindows


class Extension:
    """Asks before and after calls, as the collector in C++ does."""

    def __init__(self) -> None:
        self.after_s: list[float] = []
        self.members: dict[str, bytes] = {}
        self.notes: list[str] = []

    def watch_windows(self, begins: Callable[..., Any], ends: Callable[..., Any]) -> None:
        self.begins, self.ends = begins, ends

    def next_window(self, after_s: float) -> None:
        self.after_s.append(after_s)

    def keep_window(self, name: str, profile: bytes) -> None:
        self.members[name] = profile

    def drop_window(self, name: str) -> None:
        del self.members[name]

    def note(self, text: str) -> None:
        self.notes.append(text)

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            mark = self.begins(7)
            self.result = _double(1.0)
            if mark is not None:
                self.ends(mark, self.result, False)


class Failing:
    """A session that another one has kept from starting."""

    def stop(self) -> bytes:
        raise RuntimeError("ALREADY_EXISTS: Another profiling session active.")


_double = jax.jit(lambda x: x * 2)
ORIGINAL = _profiler.ProfilerSession


@pytest.fixture
def extension() -> Extension:
    return Extension()


@pytest.fixture
def windows(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProfilerWindows]:
    monkeypatch.setattr(module, "_ENOUGH_S", 0.0)
    _double(1.0)
    made = ProfilerWindows(extension)
    made.attach()
    yield made
    made.detach()
    assert _profiler.ProfilerSession is ORIGINAL


def test_a_window_has_a_few_calls_with_their_contexts(windows: ProfilerWindows, extension: Extension) -> None:
    extension.call()  # JAX may get its devices in the first
    assert _profiler.ProfilerSession is ORIGINAL
    extension.call(4)
    assert _profiler.ProfilerSession is not ORIGINAL
    extension.call()  # closes it, and has no mark
    [profile] = extension.members.values()
    assert b"stepscope.context 7" in profile
    assert extension.after_s[:2] == [0.0, 0.0]
    assert extension.after_s[-1] > 0


def test_windows_are_few_and_spread_over_the_run(windows: ProfilerWindows, extension: Extension) -> None:
    extension.call(1 + 5 * 70)
    assert 8 <= len(extension.members) <= module.MOST_WINDOWS
    begun = [int(name.split("-")[1]) for name in extension.members]
    assert begun == sorted(begun)
    assert max(extension.after_s) >= 8 * 2.0  # thinned out three times, and half as often each time


def test_their_size_is_limited(
    windows: ProfilerWindows, extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension.call(1 + 5)
    [profile] = extension.members.values()
    monkeypatch.setattr(module, "MOST_BYTES", 3 * len(profile))
    extension.call(5 * 10)
    assert 0 < sum(map(len, extension.members.values())) <= 3 * len(profile)
    monkeypatch.setattr(module, "MOST_BYTES", len(profile) // 2)
    extension.call(5 * module._MOST_FAILURES)
    assert extension.after_s[-1] < 0  # no more windows


def test_the_programs_profiler_comes_first(
    windows: ProfilerWindows, extension: Extension, tmp_path: Path
) -> None:
    extension.call(3)
    with jax.profiler.trace(str(tmp_path)):
        assert _profiler.ProfilerSession is ORIGINAL
        extension.call(10)
        assert _profiler.ProfilerSession is ORIGINAL
    assert list(tmp_path.rglob("*.xplane.pb"))
    extension.call(5)
    assert len(extension.members) == 1


def test_a_profiler_server_has_the_profiler_to_itself(
    windows: ProfilerWindows, extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension.call(3)
    started: list[int] = []
    monkeypatch.setattr(module.jax_profiler, "_profiler_server", None)  # and again at the end
    windows._abandon()
    monkeypatch.setattr(_profiler, "start_server", lambda port: started.append(port) or "server")
    extension.call(1)
    jax.profiler.start_server(9)
    assert (started, _profiler.ProfilerSession) == ([9], ORIGINAL)
    extension.call(10)
    assert not extension.members


def test_an_exception_of_a_signal_handler_reaches_the_program(
    windows: ProfilerWindows, extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError("the program's alarm")

    before = signal.signal(signal.SIGUSR1, late)

    def interrupted(seconds: float) -> None:
        signal.raise_signal(signal.SIGUSR1)

    extension.call(5)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_is_pending", lambda array: True)
        patch.setattr(module.time, "sleep", interrupted)
        with pytest.raises(TimeoutError):
            extension.call()
    signal.signal(signal.SIGUSR1, before)
    extension.call()
    assert len(extension.members) == 1


def test_a_profiler_that_fails_ends_the_windows(windows: ProfilerWindows, extension: Extension) -> None:
    for _ in range(module._MOST_FAILURES):
        while (window := windows._window) is None:
            extension.call()
        window._session.stop()
        window._session = Failing()
        while windows._window is window:
            extension.call()
    windows.detach()
    assert extension.after_s[-1] < 0
    assert extension.notes[0].startswith("no execution of compiled operations was recorded: ")


def test_a_run_of_one_call_says_why_it_has_none(windows: ProfilerWindows, extension: Extension) -> None:
    extension.call()
    windows.detach()
    assert extension.notes == [
        "no execution of compiled operations was recorded: "
        "the run ended before its second call of a compiled function"
    ]


def test_no_call_waits_for_another_thread(windows: ProfilerWindows, extension: Extension) -> None:
    extension.call(3)
    marks: list[Any] = []
    other = threading.Thread(target=lambda: marks.append(extension.begins(7)))
    with windows._lock:
        other.start()
        other.join()
    assert marks == [None]
