"""The data of a single file: answers as JSON in gzip, up to a size."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import msgspec

from stepscope.serve.export_answers import KeyedAnswer
from stepscope.serve.open_files import Traces
from stepscope.serve.requests import encode

_END_BYTES = 1 << 16  # for what is left out and the list of traces
_TRIES = 6
_FIRST = 5000  # parts that are tried first: all of a large step take long to make and rarely fit
_CAREFULLY = 0.95  # of the room
_PART = 4  # of a size that does not fit, this part comes next: a few parts may take most of it
_WORTH_A_TRY = 1.3  # times as large as what fits
_EFFORT = 6  # 9 takes four times as long for 3 % less


class Embedded(msgspec.Struct):
    """The data of a single file.

    Attributes:
        answers: by request: its name, then `?` and the parameters that are not empty, in
            alphabetical order, quoted by `encodeURIComponent`.
        left_out: what is missing; shown at the page's foot.
    """

    answers: dict[str, Any]
    left_out: list[str]
    traces: Traces


class _Grown(NamedTuple):
    """What the archive would be with more in it.

    Attributes:
        compressor: its state then.
        piece: the bytes to append.
        held: how many bytes the compressor holds back.
    """

    compressor: zlib._Compress
    piece: bytes
    held: int


class _Tried(NamedTuple):
    """A size of an answer, its share of the room, and the archive with it."""

    size: int
    share: float
    grown: _Grown | None = None


class Archive:
    """An `Embedded` as JSON in gzip that grows answer by answer up to a size.

    Args:
        room: size limit in bytes.
    """

    def __init__(self, room: int) -> None:
        self._room, self._size, self._held, self._comma = room, 0, 0, b""
        self._compressor = zlib.compressobj(_EFFORT, wbits=31)
        self._pieces: list[bytes] = []
        self._write(b'{"answers":{')

    def add(self, *answers: KeyedAnswer, reserve: int = 0) -> bool:
        """Write answers, all or none; returns whether there was room.

        Args:
            answers: keys and answers.
            reserve: bytes to keep free for what comes later.
        """
        grown = self._with(*answers)
        if self._share(grown, reserve) > 1:
            return False
        self._become(grown)
        return True

    def add_largest(
        self, key: str, answer: Callable[[int], msgspec.Struct], most: int, reserve: int
    ) -> int:
        """Write one answer, as large as there is room for; returns how large.

        Args:
            key: of the answer.
            answer: the answer of a size.
            most: its full size.
            reserve: bytes to keep free for what comes later.
        """
        size, fits, too_large = min(most, _FIRST), _Tried(0, 0.0), None
        for _ in range(_TRIES):
            if size <= fits.size * _WORTH_A_TRY:
                break
            grown = self._with((key, answer(size)))
            tried = _Tried(size, self._share(grown, reserve), grown)
            if tried.share <= 1:
                fits = tried
            else:
                too_large = tried
            size = min(most, _next_size(fits, too_large))
        if fits.grown:
            self._become(fits.grown)
        return fits.size

    def close(self, left_out: list[str], traces: Traces) -> bytes:
        """All of it."""
        self._write(b'},"left_out":' + encode(left_out) + b',"traces":' + encode(traces) + b"}")
        return b"".join([*self._pieces, self._compressor.flush()])

    def _with(self, *answers: KeyedAnswer) -> _Grown:
        """The archive with some more answers."""
        compressor = self._compressor.copy()
        piece = compressor.compress(self._comma + b",".join(map(_text, answers)))
        return _Grown(compressor, piece, len(compressor.copy().flush()))

    def _share(self, grown: _Grown, reserve: int) -> float:
        """How much of the room answers take, without what is reserved; above 1 they do not fit."""
        room = self.room - reserve - _END_BYTES
        return (len(grown.piece) + grown.held - self._held) / room if room > 0 else inf

    def _become(self, grown: _Grown) -> None:
        self._compressor, self._held = grown.compressor, grown.held
        self._keep(grown.piece)
        self._comma = b","

    def _write(self, data: bytes) -> None:
        self._keep(self._compressor.compress(data))

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self._room - self._size - self._held


def _text(keyed: KeyedAnswer) -> bytes:
    """An answer as a member of a JSON object."""
    key, value = keyed
    return encode(key) + b":" + encode(value)


def _next_size(fits: _Tried, too_large: _Tried | None) -> int:
    """The size that about fills the room; part of an answer may be as large at any size."""
    if too_large is None:
        return int(fits.size / fits.share * _CAREFULLY)
    slope = (too_large.size - fits.size) / (too_large.share - fits.share)
    size = fits.size + slope * (_CAREFULLY - fits.share)
    return int(size if fits.size else min(size, too_large.size / _PART))
