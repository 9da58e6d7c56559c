"""Bytes of a trace in bounded chunks, from a plain or a gzip file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

CHUNK_BYTES = 1 << 20  # what is decoded from it stays in a core's cache: a fifth faster than 4 MiB
_READ_BYTES = 1 << 18
Warn = Callable[[str, str], None]
Progress = Callable[[int], None]


def chunks(
    file: BinaryIO, gzipped: bool, warn: Warn, progress: Progress
) -> Generator[bytes, None, None]:
    """The content of `file`, decompressed, about `CHUNK_BYTES` at a time, one chunk read ahead.

    Args:
        file: an open binary file at its start.
        gzipped: whether it is gzip.
        warn: called with (code, message) where the compressed data end early or are damaged.
        progress: called with the number of bytes of `file` read since the last call.

    Yields:
        Non-empty byte strings. Close the generator to end its thread.
    """
    pieces = _inflate(file, warn, progress) if gzipped else _read(file, progress)
    return _ahead(_sized(pieces))


def _read(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        progress(len(data))
        yield data


def _inflate(file: BinaryIO, warn: Warn, progress: Progress) -> Iterator[bytes]:
    """Decompress as far as the data go: what a cut-off file still holds is worth having."""
    engine, inside = zlib.decompressobj(wbits=31), False
    while data := file.read(_READ_BYTES):
        progress(len(data))
        while data:
            before = engine.copy()
            try:
                yield engine.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                yield from _salvage(before, data)
                warn("damaged_gzip", f"the gzip data are damaged ({error}); read as far as they go")
                return
            data, inside = engine.unconsumed_tail, not engine.eof
            if engine.eof:
                # A file may hold several gzip members; padding after the last one is harmless.
                data = engine.unused_data if engine.unused_data[:1] == b"\x1f" else b""
                engine = zlib.decompressobj(wbits=31)
    if inside:
        yield engine.flush()
        warn("truncated_gzip", "the gzip data end early; read as far as they go")


def _salvage(engine: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """What a piece holds before its damage, found byte by byte."""
    try:
        for index in range(len(data)):
            yield engine.decompress(data[index : index + 1])
    except zlib.error:
        return


def _sized(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that each step of the reader has enough to do."""
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
    """Fetch the next piece in a thread: zlib and the disk run while the last piece is decoded."""
    with ThreadPoolExecutor(1, "stepscope-read") as pool:
        future = pool.submit(next, pieces, None)
        while (piece := future.result()) is not None:
            future = pool.submit(next, pieces, None)
            yield piece
