"""Reader of Perfetto's protobuf traces (`.pftrace`): its track events, as trace events of JSON.

`native/track_events.cpp` writes them as that text, which the reader of JSON reads.
"""

import os
import re
import zlib
from contextlib import closing, suppress
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

from stepscope.base.compiled.library import function
from stepscope.errors import IngestError
from stepscope.read.byte_stream import MOST_EXPANSION, Progress, chunks, most_expanded
from stepscope.read.chrome.trace_events import read_parts
from stepscope.read.shared import WarningLog
from stepscope.read.xplane.protobuf import Damage, Span, fields, repeated
from stepscope.trace.builder import build
from stepscope.trace.trace import Trace

_PACKET, _DESCRIPTOR = 1, 60
_HEAD_PACKETS = 4  # of a file's first bytes, by which it is known
_COMPRESSED = re.compile(rb"\n[\x80-\xff]*[\x00-\x7f]\x92\x03[\x80-\xff]*[\x00-\x7f]x")  # others by zlib
_TOO_LARGE = -1  # of the compiled writer; any other number but 0 is the system's, of an error
_WARNINGS = (  # in the order of the compiled writer's counts
    ("damaged_message", "a message is damaged or truncated; read up to the damage"),
    ("unread_packet", "skipped packets that are no track events"),
    ("unread_event", "skipped track events of a type that is not read"),
)


def is_perfetto(head: bytes) -> bool:
    """Whether a file's first bytes are packets with a time, a sequence or a track, or compressed ones."""
    damage = Damage()
    places, _ = repeated(head, Span(0, len(head)), _PACKET)
    packets = [Span(*places[at : at + 2]) for at in range(0, min(len(places), 2 * _HEAD_PACKETS), 2)]
    numbers = {field.number for packet in packets for field in fields(head, packet, damage)}
    return bool(_COMPRESSED.match(head)) or (bool(numbers & {8, 10, _DESCRIPTOR}) and not damage.count)


def read_perfetto(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a Perfetto trace, as every `Reader` does."""
    log, data = WarningLog(), bytearray()  # joined, the pieces would take the room twice
    with closing(chunks(file, gzipped, log, progress)) as pieces:
        for piece in pieces:
            data += piece
    most = most_expanded(len(data))  # bytes of its packets, and of its events as text
    with TemporaryFile() as text:  # takes more room than the trace
        _write(_unpacked(data, most, log), text, most, log)
        del data
        text.seek(0)
        parts = read_parts(text, False, lambda size: None)
    parts.warnings = [*log.rows(), *parts.warnings]
    return build(parts)


def _write(data: bytes | bytearray, text: BinaryIO, most: int, log: WarningLog) -> None:
    """Write the events of a trace as JSON."""
    packets, counts = np.frombuffer(data, np.uint8), np.empty(len(_WARNINGS), np.int64)
    failure = function("stepscope_write_track_events")(packets, len(data), text.fileno(), most, counts)
    if failure == _TOO_LARGE:
        raise IngestError(
            f"its events take more than {most >> 20:,} MiB as text, as those of no recording do; "
            "not reading them"
        )
    if failure:
        raise OSError(failure, os.strerror(failure))
    for (code, message), count in zip(_WARNINGS, counts.tolist(), strict=True):
        log(code, message, count)


def _unpacked(data: bytearray, most: int, log: WarningLog) -> bytes | bytearray:
    """The trace with each packet that holds compressed ones replaced by them."""
    find, packets = function("stepscope_compressed_packets"), np.frombuffer(data, np.uint8)
    places = np.empty((find(packets, len(data), 0, np.empty(0, np.int64)), 4), np.int64)
    if not find(packets, len(data), len(places), places):
        return data
    unpacked, passed = bytearray(), 0
    for begin, end, first, last in places.tolist():
        unpacked += data[passed:begin]
        unpacked += _inflated(data[first:last], most - len(unpacked), log)
        passed = end
    return unpacked + data[passed:]


def _inflated(packed: bytearray, most: int, log: WarningLog) -> bytes:
    engine, content = zlib.decompressobj(), b""
    with suppress(zlib.error):
        content = engine.decompress(packed, max(min(MOST_EXPANSION * len(packed), most), 1))
    if not engine.eof:
        log(*_WARNINGS[0])
    return content
