"""A query in a process of its own, which can be ended.

DuckDB's functions of text obey neither its limit of memory nor an interrupt: `printf('%1000000000d',
1)` takes gigabytes, and `lpad` minutes. The operating system bounds the process instead. Tables go
there, and the result comes back, as files of Arrow.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from stepscope.base.parallel import own_command
from stepscope.errors import QueryError
from stepscope.trace.query import NO_FILES, answer_of, tables_for
from stepscope.trace.trace import Trace

Check = Callable[[], None]
_CHECK_S = 0.1  # between two looks at whether the result is still wanted; chosen
_START_S = 5  # to start Python and load DuckDB; 0.3 s on an idle machine
_ANSWER, _ERROR, _ASKED = "answer", "error", "asked"
_OVERHEAD_BYTES = 128 << 20  # of address space that threads and allocators reserve, and do not use
_STOPPED = tuple(-getattr(signal, name, 0) for name in ("SIGALRM", "SIGXCPU", "SIGKILL"))
_NO_MEMORY = re.compile("^Out of Memory|bad_alloc")  # of DuckDB, and of what it calls


@dataclass(frozen=True)
class QueryLimits:
    """What a query may take: seconds, megabytes of memory, rows (0: any) and bytes of its result."""

    seconds: float
    megabytes: int
    rows: int
    answer_bytes: int = 16_000_000

    @property
    def memory(self) -> str:
        """What a query is told that needs more."""
        return f"the query needs more than {self.megabytes} MB of memory"


def run_query_within(trace: Trace, sql: str, limits: QueryLimits, wanted: Check = lambda: None) -> pa.Table:
    """Run one reading statement over a trace's tables, as `Trace.query`, within limits.

    The result has one row more than allowed if it is cut. `wanted` is called while the query runs; what
    it raises ends the query. Raises QueryError if the SQL is wrong, or exceeds a limit.
    """
    return query_apart(sql, tables_for(trace, sql), limits, wanted)


def query_apart(
    sql: str, tables: Mapping[str, pa.Table], limits: QueryLimits, wanted: Check = lambda: None
) -> pa.Table:
    """The same over Arrow tables."""
    with tempfile.TemporaryDirectory(prefix="stepscope-query-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for table, rows in tables.items():
            _write(folder / f"{table}.arrow", rows)
        asked = {"sql": sql, "limits": [limits.seconds, limits.megabytes, limits.rows, limits.answer_bytes]}
        (folder / _ASKED).write_text(json.dumps(asked))
        code = _run(folder, limits, wanted)
        if (folder / _ERROR).exists():
            raise QueryError((folder / _ERROR).read_text())
        if not (folder / _ANSWER).exists():
            if code is None or code in _STOPPED:
                raise QueryError(f"the query was stopped after {limits.seconds:g} s")
            raise QueryError(limits.memory)
        with pa.OSFile(str(folder / _ANSWER)) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()


def _run(folder: Path, limits: QueryLimits, wanted: Check) -> int | None:
    """The exit code of the process; None where it was ended after its time."""
    process = subprocess.Popen(
        own_command(__name__, str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + limits.seconds + _START_S
    try:
        while time.monotonic() < end:
            wanted()
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_CHECK_S)
        return None
    finally:
        process.kill()
        process.wait()


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def main(folder: Path) -> None:
    """Answer what is asked in a folder, in the process that was started for it."""
    asked = json.loads((folder / _ASKED).read_text())
    limits = QueryLimits(*asked["limits"])
    try:
        _write(folder / "unfinished", _answer(folder, asked["sql"], limits))
        (folder / "unfinished").rename(folder / _ANSWER)
    except QueryError as error:
        (folder / _ERROR).write_text(limits.memory if _NO_MEMORY.search(str(error)) else str(error))
    except MemoryError:
        (folder / _ERROR).write_text(limits.memory)


def _answer(folder: Path, sql: str, limits: QueryLimits) -> pa.Table:
    def register(connection: Any) -> None:
        for path in folder.glob("*.arrow"):
            connection.register(path.stem, pa.ipc.open_file(pa.memory_map(str(path))).read_all())
        _limit(limits)

    config = {**NO_FILES, "memory_limit": f"{limits.megabytes}MB", "threads": "1"}
    table = answer_of(sql, register, config, limits.rows)
    if table.nbytes > limits.answer_bytes:
        most = limits.answer_bytes // 1_000_000
        raise QueryError(f"the result is larger than {most} MB; select fewer columns or shorter text")
    return table


def _limit(limits: QueryLimits) -> None:
    """Let the system refuse more memory than is allowed besides what this process has, and end it.

    The clock does so in time; where it cannot, the process that asked does.
    """
    if sys.platform == "win32":
        return
    import resource

    def lower(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, hard))

    lower(resource.RLIMIT_CPU, int(limits.seconds) + _START_S)
    lower(resource.RLIMIT_CORE, 0)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    if sys.platform == "linux":  # macOS enforces no such limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + (limits.megabytes << 20) + _OVERHEAD_BYTES
        lower(resource.RLIMIT_AS, size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
