"""Writes lines to the program's stderr, and removes lines that native libraries write there."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    try:
        state = os.fstat(_STDERR)
    except OSError:
        return None
    return state.st_dev, state.st_ino


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
