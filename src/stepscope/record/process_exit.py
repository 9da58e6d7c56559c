"""Ends the process as the program would have ended it, and writes to the stderr that it began with.

An exception is shown as Python shows it.
"""

import atexit
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from stepscope.record.unreplaced import os, select, signal

_OUR_FOLDER = str(Path(__file__).parent)


def show(error: BaseException) -> str | int | None:
    """Report an uncaught exception through the program's own hook; the exit code, which that may set."""
    with suppress(Exception):
        _hide_our_frames(error)
    # What debuggers and exit functions look at.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        return _display("sys.excepthook is missing\n", error)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int | None) else str(exit.code)
    except BaseException as second:
        _hide_our_frames(second)
        second.__context__ = None if second.__context__ is error else second.__context__
        _display("Error in sys.excepthook:\n", second)
        _display("\nOriginal exception was:\n", error)
    return 1


def _display(heading: str, error: BaseException) -> int:
    with suppress(Exception):
        if sys.stderr is not None:
            sys.stderr.write(heading)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _hide_our_frames(error: BaseException) -> None:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_our_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Iterative: a traceback of a RecursionError is as deep as the stack allows."""
    entries = entries_of(traceback)
    kept = [entry for entry in entries if not entry.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER)]
    for entry, following in pairwise([*kept, None]):
        if entry is not None and entry.tb_next is not following:
            entry.tb_next = following
    return kept[0] if kept else None


def entries_of(traceback: TracebackType | None) -> list[TracebackType]:
    """The calls of a traceback, outermost first."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def say(line: str) -> None:
    """Write a line of ours to the program's stderr, if it has one; nothing fails for it."""
    with suppress(Exception):
        if sys.stderr is not None:  # else `print` writes to stdout
            print(f"stepscope: {line}", file=sys.stderr, flush=True)


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


def other_threads_go_on() -> bool:
    """Whether Python waits for threads, now that the main one has ended, before exit functions run."""
    with suppress(Exception):  # the program may have replaced anything
        others = (one for one in threading.enumerate() if one is not threading.main_thread())
        return any(not one.daemon for one in others)
    return False


def before_termination(write: Callable[[], object]) -> None:
    """Call this before SIGTERM ends the process, unless the program handles it; as the main thread ends."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        write()
        os.kill(os.getpid(), number)

    with suppress(Exception):  # as in a thread that is not the main one
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)


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


_STDERR = 2  # file descriptor
_PATIENCE_MS = 1000  # for a reader that does not read


class Messages:
    """Writes lines to the stderr that the process was started with.

    The program may have closed or replaced `sys.stderr`, redirected its descriptor, or lost the
    reader of its pipe. So lines go to the descriptor itself, and only if it is still the same file.
    """

    def __init__(self) -> None:
        self._file = _identity() if sys.__stderr__ is not None else None

    def say(self, line: str) -> None:
        """Write a line, if there is still somewhere to write it."""
        with suppress(Exception):
            if sys.stderr is sys.__stderr__ and sys.stderr is not None:
                with suppress(Exception):  # what the program printed before comes first
                    sys.stderr.flush()
            if self._file is not None and _identity() == self._file:
                encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
                _write(f"stepscope: {line}\n".encode(encoding, "backslashreplace"))


def _identity() -> tuple[int, int] | None:
    with suppress(OSError):
        state = os.fstat(_STDERR)
        return state.st_dev, state.st_ino
    return None


def _write(content: bytes) -> None:
    with _without_sigpipe():
        while content and _is_ready():
            content = content[os.write(_STDERR, content) :]


def _is_ready() -> bool:
    """Whether a write would not block: a reader that reads no more must not hold the program up."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(_PATIENCE_MS))


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """A program that gave SIGPIPE its default action back would die of a broken pipe."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending() and hasattr(signal, "sigtimedwait"):
                signal.sigtimedwait({signal.SIGPIPE}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_lines(unwanted: bytes) -> Iterator[None]:
    """What is written to descriptor 2 inside appears afterwards, but for lines with a text."""
    try:
        original, kept = os.dup(_STDERR), tempfile.TemporaryFile()  # noqa: SIM115
    except OSError:  # stderr is closed, or no file can be made
        yield
        return
    with kept:
        os.dup2(kept.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(original, _STDERR)
            kept.seek(0)
            lines = [line for line in kept.read().splitlines(True) if unwanted not in line]
            with suppress(OSError):  # nobody reads it
                os.write(original, b"".join(lines)) if lines else None
            os.close(original)
