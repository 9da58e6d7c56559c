"""Removes lines of native libraries from standard error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2


@contextmanager
def without_lines(unwanted: bytes) -> Iterator[None]:
    """What is written to descriptor 2 inside appears afterwards, but for lines with a text.

    Args:
        unwanted: part of the lines to remove.
    """
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
