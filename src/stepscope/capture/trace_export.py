"""Writing PyTorch's trace, with an error where PyTorch says nothing: on a disk that is full.

It then leaves no file, or the beginning of one.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

_LAST_BYTES = 64
_PROBE_BYTES = 1 << 16
_NOT_WHOLE = "PyTorch could not write the whole trace; is the disk full?"


def export_trace(profiler: Any, path: Path) -> None:
    """Write torch.profiler's JSON.

    Args:
        profiler: that has recorded.
        path: of the file.

    Raises:
        OSError: the file could not be written, with the system's reason where it can be found.
    """
    profiler.export_chrome_trace(str(path))
    if not _is_whole(path):
        _write_as_much(path)
        raise OSError(errno.EIO, _NOT_WHOLE, str(path))


def _is_whole(path: Path) -> bool:
    """Whether there is a file that ends as JSON does."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _LAST_BYTES, 0))
            return file.read(_LAST_BYTES).rstrip()[-1:] in (b"}", b"]")
    except FileNotFoundError:
        return False


def _write_as_much(path: Path) -> None:
    """Write until the system says why it refuses."""
    with path.open("ab", buffering=0) as file:
        file.write(bytes(_PROBE_BYTES))
        file.write(bytes(_PROBE_BYTES))  # what is partly written says nothing, the next does
