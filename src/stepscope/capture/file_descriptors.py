"""Room to open files in a program that has used up its file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_NEEDED = 16  # the archive, its parts, a locked folder, and modules that are imported on the way


@contextmanager
def spare_descriptors() -> Iterator[None]:
    """Make sure that some files can be opened meanwhile.

    Where the soft limit is in the way, it is raised for that time, as far as the hard limit allows.

    Raises:
        OSError: not enough files can be opened.
    """
    try:
        _probe()
    except OSError:
        with _raised_limit():
            _probe()
            yield
    else:
        yield


def _probe() -> None:
    """Open as many descriptors as are needed, and close them; OSError if that fails."""
    opened: list[int] = []
    try:
        while len(opened) < _NEEDED:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def _raised_limit() -> Iterator[None]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft + 2 * _NEEDED
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):  # the program has changed its limits meanwhile
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
