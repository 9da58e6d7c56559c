"""Reads files as traces: the list of readers, and detection of the format by content."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from stepscope.base.input_files import open_input
from stepscope.base.plugins import OUTSIDE, plugins
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, check_holes, decompressed_head, utf16_of
from stepscope.read.chrome.trace_events import read_trace_events
from stepscope.read.memory_snapshot.memory_snapshot import is_snapshot, read_snapshot
from stepscope.read.memory_timeline import read_memory_timeline
from stepscope.read.nsys.nsys import exported, is_report, read_nsys
from stepscope.read.perfetto.perfetto import is_perfetto, read_perfetto
from stepscope.read.recorded.capture_file import read_capture
from stepscope.read.rocprofv3 import read_rocprofv3
from stepscope.read.shared import possible_devices
from stepscope.read.unsupported import is_trace_events, like, refuse_foreign
from stepscope.read.xplane.xplane import read_xplane
from stepscope.read.xplane.xspace import is_space
from stepscope.trace.trace import Trace

_HEAD_BYTES = 1 << 16  # of the content, by which the format is told


@dataclass(frozen=True)
class Reader:
    """One format: its name, and whether a file's first bytes look like it.

    `read` reads an open binary file from its start. The second argument is whether the file is
    compressed with gzip or zstd; the third is called with the number of bytes read since the last
    call. It returns the recorded trace, before annotation, and raises IngestError if the file is not
    such a trace or holds no readable event.
    """

    name: str
    matches: Callable[[bytes], bool]
    read: Callable[[BinaryIO, bool, Progress], Trace]


READERS = (
    Reader("stepscope capture", lambda head: head.startswith(b"PK"), read_capture),
    Reader("memory timeline", like(rb"\[\s*\[\s*-?\d"), read_memory_timeline),
    Reader("rocprofv3 JSON", like(rb'\{\s*"rocprofiler-sdk-tool"\s*:'), read_rocprofv3),
    Reader("trace events", lambda head: is_trace_events(_text_of(head)), read_trace_events),
    Reader("XLA profile", is_space, read_xplane),
    Reader("Perfetto trace", is_perfetto, read_perfetto),
    Reader("memory snapshot", is_snapshot, read_snapshot),
    Reader("Nsight Systems export", lambda head: head.startswith(b"SQLite format 3\0"), read_nsys),
)


def read(path: Path, progress: Progress = lambda size: None) -> Trace:
    """The trace that a file of any supported format holds, before annotation.

    `progress` is called with the number of bytes read since the last call. Raises IngestError if
    the file cannot be read as a trace; the message names the file.
    """
    try:
        if is_report(path):
            with exported(path) as database:
                trace = _read_file(database, lambda size: None)
        else:
            trace = _read_file(path, progress)
    except IngestError as error:
        raise IngestError(f"{path}: {error}") from error
    except OSError as error:
        raise IngestError(f"{path}: {_reason(error)}") from error
    return trace.with_metadata(source=str(path))


def _read_file(path: Path, progress: Progress) -> Trace:
    with open_input(path) as file:
        reader, compressed, _ = _reader(file)
        check_holes(file)
        trace = reader.read(file, compressed, progress)
    if reader not in READERS:
        trace = trace.with_metadata(properties={**trace.metadata.properties, OUTSIDE: True})
    devices = possible_devices(trace.metadata.devices)
    # A redacted file says what it was made from.
    return trace.with_metadata(format=trace.metadata.format or reader.name, devices=devices)


def is_trace(path: Path) -> bool:
    """Whether a file's first bytes look like a supported format; JSON that ends there, if it has events."""
    try:
        with open_input(path) as file:
            reader, _, content = _reader(file)
            text = _text_of(content)
            is_open = len(content) >= _HEAD_BYTES or reader.read is not read_trace_events
            return is_open or b'"ph"' in text or b'"traceEvents"' in text
    except (IngestError, OSError):
        return False


def _first_match(readers: tuple[Reader, ...], content: bytes) -> Reader | None:
    return next((reader for reader in readers if reader.matches(content)), None)


@cache
def _readers_of_others() -> tuple[Reader, ...]:
    """Looked for once: a folder may hold thousands of files that no reader knows."""
    return tuple(plugins("readers", Reader))


def _reader(file: BinaryIO) -> tuple[Reader, bool, bytes]:
    """The reader for an open file, whether it is compressed, and its first bytes; it is left at its start."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    unpacked = decompressed_head(head, _HEAD_BYTES)
    content = head if unpacked is None else unpacked
    # Others are only looked for where no built-in reader matches.
    if reader := _first_match(READERS, content) or _first_match(_readers_of_others(), content):
        return reader, unpacked is not None, content
    refuse_foreign(content, str(getattr(file, "name", "")))
    raise IngestError(
        "expected a .stepscope capture, trace-event JSON (.json, .json.gz), an XLA profile "
        "(.xplane.pb), an Nsight Systems export (.sqlite), a Perfetto trace (.pftrace) or a memory snapshot "
        f"(.pickle), found {_description(content)}; export the recording as JSON (a Chrome trace) and open it"
    )


def _text_of(head: bytes) -> bytes:
    if encoding := utf16_of(head):
        return head.decode(encoding, "replace").lstrip().encode("utf-8", "replace")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _description(head: bytes) -> str:
    if not head.strip():
        return "an empty file"
    if head[:64].isascii() and b"\0" not in head:
        return f"text that begins with {head[:16].decode()!r}"
    return f"binary data that begins with {head[:16]!r}"


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder; check the path"
    if isinstance(error, PermissionError):
        return "permission denied; check the file's permissions with `ls -l`"
    return f"cannot be read: {error.strerror or error}"
