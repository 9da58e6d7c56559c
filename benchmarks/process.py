"""Runs a command and returns the cost of the whole process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Timer

_MAXRSS_UNIT = 1024 if os.uname().sysname == "Linux" else 1


@dataclass
class Cost:
    """A process: wall and CPU seconds from start to end, peak memory, exit status, its output."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    status: int
    output: str


def run(command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end, or kill it after `timeout_s`; errors go to this one's stderr.

    Memory is the kernel's high-water mark of the process (not of its children). On Linux that is
    never below what this process itself takes, so keep it small.
    """
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    limit = Timer(timeout_s, child.kill)
    limit.start()
    assert child.stdout
    with child.stdout as pipe:
        output = pipe.read().decode("utf-8", "replace")
    _, status, usage = os.wait4(child.pid, 0)
    limit.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(wall, cpu, usage.ru_maxrss * _MAXRSS_UNIT, child.returncode, output)
