"""Files that a user names: whatever is read from one is opened here, since a pipe may never end."""

import os
from errno import EFBIG, EINVAL
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO


def open_input(path: str | Path) -> BinaryIO:
    """A file to read from its start; raises OSError for a pipe or a device, which may never end.

    One that states no size is empty, or of the kernel: /proc/kmsg would wait for its next message.
    """
    state = Path(path).stat()
    if not (S_ISREG(state.st_mode) or S_ISDIR(state.st_mode)):
        raise OSError(EINVAL, "it is a pipe or a device; save its output to a file first", str(path))
    return Path(path if state.st_size else os.devnull).open("rb")


def content_of(path: str | Path) -> bytes:
    """All of such a file; raises OSError also for one that is too large."""
    with open_input(path) as file:
        if os.fstat(file.fileno()).st_size > 256 << 20:  # chosen: model trees and dumps have a few MB
            raise OSError(EFBIG, "it has more than 256 MiB", str(path))
        return file.read()
