"""Files to traces: a visible list of readers, and detection by content."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stepscope.errors import IngestError
from stepscope.ingest.capture import read_capture
from stepscope.ingest.foreign import refuse_foreign
from stepscope.ingest.stream import Progress
from stepscope.ingest.trace_events import read_trace_events
from stepscope.ingest.xplane import read_xplane
from stepscope.ingest.xspace import is_space
from stepscope.trace.trace import Trace

__all__ = ["READERS", "Reader", "is_trace", "read"]

_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Reader:
    """One format.

    Attributes:
        name: of the format.
        matches: whether a file's first bytes look like it.
        read: reads an open binary file from its start; the second argument says whether it is gzip,
            the third is called with the bytes read since the last call. Returns the trace with its
            recorded facts, nothing derived yet. Raises IngestError if the file is no such trace,
            or holds no event that could be read.
    """

    name: str
    matches: Callable[[bytes], bool]
    read: Callable[[BinaryIO, bool, Progress], Trace]


READERS = (
    Reader("stepscope capture", lambda head: head.startswith(b"PK"), read_capture),
    Reader("trace events", lambda head: _text_of(head)[:1] in (b"{", b"["), read_trace_events),
    Reader("XLA profile", is_space, read_xplane),
)


def read(path: Path, progress: Progress = lambda size: None) -> Trace:
    """Read one file of any supported format.

    Args:
        path: a file.
        progress: called with the number of bytes read since the last call.

    Returns:
        The trace with its recorded facts; nothing derived yet.

    Raises:
        IngestError: if it cannot be read as a trace; the message names the file.

    Example:
        >>> len(read(Path("trace.json.gz")).events)  # doctest: +SKIP
        68692
    """
    try:
        with path.open("rb") as file:
            reader, gzipped = _reader(file)
            trace = reader.read(file, gzipped, progress)
    except IngestError as error:
        raise IngestError(f"{path}: {error}") from error
    except OSError as error:
        raise IngestError(f"{path}: {_reason(error)}") from error
    return trace.with_metadata(source=str(path), format=reader.name)


def is_trace(path: Path) -> bool:
    """Whether a file's first bytes look like a format that can be read."""
    try:
        with path.open("rb") as file:
            return bool(_reader(file))
    except (IngestError, OSError):
        return False


def _reader(file: BinaryIO) -> tuple[Reader, bool]:
    """The reader for an open file, and whether the file is gzip; the file is left at its start."""
    if not file.seekable():
        raise IngestError("expected a file, found a pipe; write what comes out of it to a file")
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    gzipped = head.startswith(_GZIP)
    content = _inflated(head) if gzipped else head
    for reader in READERS:
        if reader.matches(content):
            return reader, gzipped
    refuse_foreign(content)
    raise IngestError(
        "expected a .stepscope capture, trace-event JSON (.json, .json.gz) or an XLA profile "
        f"(.xplane.pb), found {_description(content)}; export the recording as JSON (a Chrome "
        "trace) and open that"
    )


def _inflated(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error as error:
        raise IngestError(
            f"expected gzip data as its first bytes promise, found damage ({error}); "
            "copy or download the file again"
        ) from error


def _text_of(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _description(head: bytes) -> str:
    if not head.strip():
        return "an empty file"
    kind = "text" if head[:64].isascii() and b"\0" not in head else "binary data"
    return f"{kind} that begins with {head[:16]!r}"


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "expected a file or a folder, found nothing there; check the path"
    if isinstance(error, PermissionError):
        return "expected a readable file, found one without read permission; see `ls -l`"
    return f"expected a file, found what cannot be read ({error.strerror or error})"
