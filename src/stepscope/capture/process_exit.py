"""End the process as the program would have ended it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

_interrupted = False


def prepare() -> None:
    """Call before the program runs: exit functions registered first run last."""
    atexit.register(_die_of_interrupt)


def by_interrupt() -> NoReturn:
    """End as Python does after Ctrl-C: by SIGINT, after the exit functions have run.

    A shell sees exit code 130.
    """
    global _interrupted
    _interrupted = True
    raise SystemExit(130)


def _die_of_interrupt() -> None:
    if _interrupted and os.name == "posix":
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def leave_forked_child(code: object) -> None:
    """End a child that the program forked, without the exit handlers of C++.

    After a profiler has run, Kineto's exit handlers wait in a forked child for a thread that only
    the parent has. A child that never imported torch exits as usual.
    """
    if "torch" not in sys.modules:
        return
    if code is not None and not isinstance(code, int):
        with suppress(Exception):
            print(code, file=sys.stderr)
    interpreter: Any = threading
    interpreter._shutdown()
    exit_functions: Any = atexit
    exit_functions._run_exitfuncs()
    status = _flush()
    os._exit(status or (code & 0xFF if isinstance(code, int) else int(code is not None)))


def _flush() -> int:
    """Flush as Python does at exit; its exit code where that fails."""
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            status = 120
    return status
