"""Bytes of a trace in bounded chunks, from a plain, gzip or zstd file; UTF-16 becomes UTF-8."""

from __future__ import annotations

import codecs
import os
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stepscope.errors import IngestError

if TYPE_CHECKING:
    import pyarrow as pa

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Threads that decode less at a time wait for the interpreter's lock too often for a second core to help.
CHUNK_BYTES = 4 << 20  # decompressed
_READ_BYTES = 1 << 18  # compressed, at a time
_SMALL_BYTES, MOST_EXPANSION = 128 << 20, 200  # recordings shrink to a fifth or a fiftieth
_BLOCK_BYTES = 512  # of `st_blocks`, in POSIX
MOST_AT_ONCE = 2 << 30  # bytes in memory; the limit of a protobuf message
Warn = Callable[[str, str], None]
Progress = Callable[[int], None]


def chunks(file: BinaryIO, compressed: bool, warn: Warn, progress: Progress) -> Generator[bytes, None, None]:
    """The content of `file`, decompressed, in chunks of about one size, one of them read ahead.

    Close the generator to end its thread. `warn` is called if the compressed data end early or are
    damaged, `progress` with the number of bytes of `file` read since the last call.
    """
    pieces = (_decompressed if compressed else _read)(file, warn, progress)
    return _ahead(_sized(_as_utf8(pieces)))


def whole(file: BinaryIO, compressed: bool, warn: Warn, progress: Progress) -> bytes:
    """All of the content; raises IngestError if it has more bytes than `MOST_AT_ONCE`."""
    taken, left = [], MOST_AT_ONCE
    with closing(chunks(file, compressed, warn, progress)) as pieces:
        for piece in pieces:
            taken.append(piece)
            if (left := left - len(piece)) < 0:
                raise IngestError(f"it holds more than {MOST_AT_ONCE >> 30} GiB; record fewer steps")
    return b"".join(taken)


@contextmanager
def on_disk(file: BinaryIO, compressed: bool, warn: Warn, progress: Progress) -> Iterator[Path]:
    """The file's path, or that of a decompressed copy, for what reads from a file alone."""
    if not compressed:
        yield Path(file.name)
        progress(Path(file.name).stat().st_size)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "decompressed"
        with path.open("wb") as copy, closing(chunks(file, True, warn, progress)) as pieces:
            copy.writelines(pieces)
        yield path


def decompressed_head(head: bytes, size: int) -> bytes | None:
    """At most `size` bytes of compressed content, from the first bytes of a file.

    None if it is not compressed. Raises IngestError if it is damaged.
    """
    if not head.startswith((GZIP, ZSTD)):
        return None
    log: list[str] = []
    pieces = _decompressed(BytesIO(head), lambda code, _: log.append(code), lambda _: None, size)
    content = next(filter(None, pieces), b"")
    if not content and {"damaged_gzip", "damaged_zstd"}.intersection(log):
        raise IngestError("the compressed data are damaged; copy or download the file again")
    return content


def utf16_of(head: bytes) -> str:
    """The encoding of text that begins like UTF-16 JSON, empty for any other."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return {b"{\0": "utf-16-le", b"[\0": "utf-16-le", b"\0{": "utf-16-be", b"\0[": "utf-16-be"}.get(
        head[:2], ""
    )


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    encoding = utf16_of(first)
    if not encoding:
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for piece in chain([first], pieces):
        yield decoder.decode(piece).encode("utf-8", "replace")


def _decompressed(file: BinaryIO, warn: Warn, progress: Progress, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The content in pieces of at most `size` bytes."""
    is_zstd = file.read(len(ZSTD)) == ZSTD
    file.seek(0)
    return (_unzstd if is_zstd else _inflate)(file, warn, progress, size)


def _unzstd(file: BinaryIO, warn: Warn, progress: Progress, size: int) -> Iterator[bytes]:
    done = unpacked = 0
    try:
        for piece in _zstd_pieces(file, size):
            now = max(file.tell(), done)  # what is salvaged was read before
            progress(now - done)
            done, unpacked = now, unpacked + len(piece)
            _check_expansion(done, unpacked)
            yield piece
    except OSError as error:
        reason = str(error).splitlines()[0]
        warn("damaged_zstd", f"the zstd data are damaged ({reason}); read up to the damage")


def _zstd_pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    passed = 0
    try:
        with _zstd_stream(file) as stream:
            while piece := stream.read(size):
                passed += len(piece)
                yield piece
    except OSError:
        yield _salvaged_zstd(file, passed, size)
        raise


def _salvaged_zstd(file: BinaryIO, passed: int, size: int) -> bytes:
    """What lies between the content that is known and the damage: a read that fails loses it."""
    salvaged: list[bytes] = []
    with suppress(OSError), _zstd_stream(file) as stream:
        while passed:
            passed -= len(stream.read(min(passed, size)))
        while len(salvaged) < size and (byte := stream.read(1)):
            salvaged.append(byte)
    return b"".join(salvaged)


def _zstd_stream(file: BinaryIO) -> pa.CompressedInputStream:
    import pyarrow as pa

    file.seek(0)
    return pa.CompressedInputStream(pa.PythonFile(_LeftOpen(file), "r"), "zstd")


class _LeftOpen:
    """A file that whoever reads it does not close."""

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.seek, self.tell, self.closed = file.read, file.seek, file.tell, False

    def close(self) -> None:
        self.closed = True


def _read(file: BinaryIO, warn: Warn, progress: Progress) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        progress(len(data))
        yield data


def _inflate(file: BinaryIO, warn: Warn, progress: Progress, size: int) -> Iterator[bytes]:
    """Decompress as far as possible: a truncated file may still hold useful events."""
    engine, inside = zlib.decompressobj(wbits=31), False
    packed = unpacked = 0
    while data := file.read(_READ_BYTES):
        progress(len(data))
        packed += len(data)
        while data:
            before = engine.copy()
            try:
                piece = engine.decompress(data, size)
            except zlib.error as error:
                yield from _salvage(before, data)
                warn("damaged_gzip", f"the gzip data are damaged ({error}); read up to the damage")
                return
            unpacked += len(piece)
            _check_expansion(packed, unpacked)
            yield piece
            data, inside = engine.unconsumed_tail, not engine.eof
            if engine.eof:
                # A file may hold several gzip members; padding after the last one is harmless.
                data = engine.unused_data if engine.unused_data[:1] == b"\x1f" else b""
                engine = zlib.decompressobj(wbits=31)
    if inside:
        yield engine.flush()
        warn("truncated_gzip", "the gzip data are truncated; read up to their end")


def _check_expansion(packed: int, unpacked: int) -> None:
    if unpacked > most_expanded(packed):
        raise IngestError(
            f"the compressed data expand more than {MOST_EXPANSION}-fold, as no recording does; "
            "not reading them"
        )


def most_expanded(packed: int) -> int:
    """The bytes that so many compressed ones of a recording may take at most."""
    return max(_SMALL_BYTES, MOST_EXPANSION * packed)


def check_holes(file: BinaryIO) -> None:
    """Raise IngestError for a file that is large and occupies next to nothing on its disk.

    A file of which the file system states no blocks at all, as some in networks do, passes.
    """
    state = os.fstat(file.fileno())
    stored = getattr(state, "st_blocks", 0) * _BLOCK_BYTES
    if stored and state.st_size > most_expanded(stored):
        raise IngestError(
            f"{state.st_size >> 20:,} MiB of which {stored >> 10:,} KiB were written, and the rest is a "
            "hole; copy the file again"
        )


def _salvage(engine: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """The content of a piece before its damage, found byte by byte."""
    with suppress(zlib.error):
        for index in range(len(data)):
            yield engine.decompress(data[index : index + 1])


def _sized(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces into chunks of at least `CHUNK_BYTES`."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


def _ahead(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Fetch the next piece in a thread while the current one is decoded; of one alone, without."""
    piece = next(pieces, None)
    if piece is not None and len(piece) < CHUNK_BYTES:  # only the last is smaller
        yield piece
        return
    with ThreadPoolExecutor(1, "stepscope-read") as pool:
        while piece is not None:
            future = pool.submit(next, pieces, None)
            yield piece
            piece = future.result()
