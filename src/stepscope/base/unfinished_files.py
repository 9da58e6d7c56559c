"""Names of files that are being written, so that what a killed process left is found and removed.

A process that gets SIGKILL, or loses its power, cannot clean up. The next that writes the same file does.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

_MARK = "unfinished"
_LONGEST_BYTES = 150  # of 255 that a name may have: prefix and suffix come with it


def unfinished(path: Path, part: str = "file") -> Path:
    """The hidden name, in the same folder, under which this process writes `path` until it is whole.

    Removes what processes of this machine that have ended left of the same file. `part` says what is
    written, where several files become one.
    """
    name = os.fsencode(path.name)
    short = path.name if len(name) <= _LONGEST_BYTES else f"{crc32(name):08x}"
    prefix = f".{short}.{_machine()}-"
    for left in _left_by_others(path.parent, prefix):
        _remove(left)
    return path.with_name(f"{prefix}{os.getpid()}.{part}.{_MARK}")


@contextmanager
def unfinished_file(path: Path, part: str = "file") -> Iterator[Path]:
    """The name of `unfinished`, to write to; what is still there at the end is removed, also after Ctrl-C."""
    name = unfinished(path, part)
    try:
        yield name
    finally:
        for left in (name, name.with_name(f"{name.name}.tmp")):  # PyTorch writes there
            _remove(left)


def _left_by_others(folder: Path, prefix: str) -> list[Path]:
    # PyTorch writes a trace under a name of its own first: the one that it was given and `.tmp`.
    name = re.compile(rf"{re.escape(prefix)}(\d+)\..*\.{_MARK}(\.tmp)?")
    alike = []
    with suppress(OSError):
        alike = [entry for entry in os.listdir(folder) if entry.startswith(prefix)]  # noqa: PTH208 (many)
    matches = [(folder / entry, name.fullmatch(entry)) for entry in alike]
    return [entry for entry, match in matches if match and not _runs(int(match[1]))]


def _remove(left: Path) -> None:
    with suppress(OSError):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _runs(process: int) -> bool:
    with suppress(PermissionError):
        return os.name != "posix" or is_alive(process)  # elsewhere os.kill would end it
    return True


def is_alive(process: int) -> bool:
    """Whether there is such a process; PermissionError is raised for those of other users."""
    with suppress(ProcessLookupError, OverflowError):
        os.kill(process, 0)
        return True
    return False


def _machine() -> str:
    """Processes of other machines, which may share the folder, cannot be looked up."""
    name = os.uname().nodename if hasattr(os, "uname") else ""
    return re.sub(r"[^\w]", "_", name)[:32]
