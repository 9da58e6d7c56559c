"""The two sides of a query in a process of its own, each tried in this one."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stepscope.base.parallel import own_command
from stepscope.errors import QueryError
from stepscope.testing import drawn_trace
from stepscope.trace import query_process
from stepscope.trace.query_process import QueryLimits, main, query_apart, run_query_within

pytest.importorskip("duckdb")
LIMITS = QueryLimits(seconds=2, megabytes=256, rows=3)
TABLES = {"events": pa.table({"name": ["mm", "add"], "ts": [1, 2]})}
MEMORY = "the query needs more than 256 MB of memory"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query runs in this process, without the limits of the system."""

    def run(folder: Path, limits: QueryLimits, wanted: object) -> int:
        main(folder)
        return 0

    monkeypatch.setattr(query_process, "_limit", lambda limits: None)
    monkeypatch.setattr(query_process, "_run", run)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select name from events where ts > 1", [("add",)]),
        ("select n from range(9) as a(n) order by n", [(0,), (1,), (2,), (3,)]),  # cut after one row more
        ("select current_setting('threads'), current_setting('memory_limit')", [(1, "244.1 MiB")]),
    ],
)
def test_an_answer_comes_back(sql: str, rows: list[tuple[object, ...]]) -> None:
    assert [tuple(row.values()) for row in query_apart(sql, TABLES, LIMITS).to_pylist()] == rows


@pytest.mark.usefixtures("here")
def test_the_tables_of_a_trace_are_those_of_its_queries() -> None:
    trace = drawn_trace("main | 0 9 | mm | shape=[2]")
    sql = "select name, json->>'$.shape' as shape from events join arguments on event = id"
    assert run_query_within(trace, sql, LIMITS).to_pylist() == [{"name": "mm", "shape": "[2]"}]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select nam from events", "there is no column 'nam'; did you mean name\\?"),
        ("drop table events", "expected one reading statement"),
        ("select repeat('x', 3000000)", "^the result is larger than 2 MB; select fewer columns"),
    ],
)
def test_a_query_that_fails_says_why(sql: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        query_apart(sql, TABLES, QueryLimits(2, 256, 3, answer_bytes=2_000_000))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (QueryError("Out of Memory Error: failed to allocate"), MEMORY),
        (QueryError("std::bad_alloc"), MEMORY),
        (QueryError("it is not Out of Memory"), "it is not Out of Memory"),
        (MemoryError(), MEMORY),
    ],
)
def test_what_a_query_lacks_is_memory(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*arguments: object) -> pa.Table:
        raise error

    monkeypatch.setattr(query_process, "answer_of", answer)
    with pytest.raises(QueryError, match=f"^{message}$"):
        query_apart("select 1", TABLES, LIMITS)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        *((code, "^the query was stopped after 2 s$") for code in (None, -signal.SIGALRM, -signal.SIGXCPU)),
        *((-signal.SIGKILL, "^the query was stopped after 2 s$"), (1, MEMORY), (0, MEMORY)),
    ],
)
def test_a_process_without_an_answer_was_stopped_or_had_no_memory(
    code: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(folder: Path, limits: QueryLimits, wanted: object) -> int | None:
        asked.append(json.loads((folder / "asked").read_text()))
        asked.append(sorted(path.name for path in folder.iterdir()))
        return code

    monkeypatch.setattr(query_process, "_run", run)
    with pytest.raises(QueryError, match=message):
        query_apart("select 1", TABLES, LIMITS)
    assert asked == [{"sql": "select 1", "limits": [2, 256, 3, 16_000_000]}, ["asked", "events.arrow"]]


class Slow:
    """A process that does not end by itself."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command, self.options, self.is_killed = command, options, False
        started.append(self)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            return -9
        clock[0] += timeout
        if clock[0] < ends_s[0]:
            raise subprocess.TimeoutExpired("", timeout)
        return 3

    def kill(self) -> None:
        self.is_killed = True


started: list[Slow] = []
clock, ends_s = [0.0], [0.0]


@pytest.mark.parametrize(("ends_at_s", "code", "elapsed_s"), [(99, None, 7), (1, 3, 1)])
def test_a_process_has_its_time_and_five_seconds_to_start(
    ends_at_s: float, code: int | None, elapsed_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started.clear()
    clock[0], ends_s[0] = 0.0, ends_at_s
    names = ("TimeoutExpired", "DEVNULL")
    fake = SimpleNamespace(Popen=Slow, **{name: getattr(subprocess, name) for name in names})
    monkeypatch.setattr(query_process, "subprocess", fake)
    monkeypatch.setattr(query_process, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    asked: list[float] = []
    found = query_process._run(tmp_path, LIMITS, lambda: asked.append(clock[0]))
    assert (found, started[0].is_killed) == (code, True)
    assert elapsed_s <= clock[0] < elapsed_s + 0.2
    assert len(asked) == pytest.approx(10 * elapsed_s, abs=1)
    assert started[0].command == own_command("stepscope.trace.query_process", str(tmp_path))
    assert {started[0].options[name] for name in ("stdin", "stdout", "stderr")} == {subprocess.DEVNULL}


def test_what_is_no_longer_wanted_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started.clear()
    names = ("TimeoutExpired", "DEVNULL")
    fake = SimpleNamespace(Popen=Slow, **{name: getattr(subprocess, name) for name in names})
    monkeypatch.setattr(query_process, "subprocess", fake)

    def wanted() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        query_process._run(tmp_path, LIMITS, wanted)
    assert started[0].is_killed


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no limit of memory")
@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 6])
def test_the_system_limits_time_and_memory(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    timers: list[tuple[int, float]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (9, hard))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(signal, "setitimer", lambda *timer: timers.append(timer))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    query_process._limit(LIMITS)
    assert timers == [(signal.ITIMER_REAL, 2)]
    assert limits[resource.RLIMIT_CORE] == (0, hard)
    is_free = hard == resource.RLIM_INFINITY
    assert limits[resource.RLIMIT_CPU] == (7 if is_free else 6, hard)
    size, most = limits[resource.RLIMIT_AS]
    assert most == hard
    if is_free:
        besides = size - pages * resource.getpagesize()
        assert besides == pytest.approx((256 + 128) << 20, abs=16 << 20)
