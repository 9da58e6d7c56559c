"""Runs a function in a forked process, so that each run is fresh but torch is imported once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def start(function: Callable[[], object]) -> tuple[int, int]:
    """A process that calls the function: its number, and the pipe of all that it prints."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_and_exit(function, writing)
    os.close(writing)
    return child, reading


def finish(child: int, reading: int) -> str:
    """What a process printed.

    Raises:
        SystemExit: if it failed.
    """
    with os.fdopen(reading, errors="replace") as pipe:
        text = pipe.read()
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"a run ended with {status}:\n{text}")
    return text


def _run_and_exit(function: Callable[[], object], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 0
    try:
        function()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
