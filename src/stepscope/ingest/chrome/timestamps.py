"""Converts recorded microseconds, as text, to exact nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stepscope.trace.arrow import arrow_bytes

LIMIT_NS = 2**62
_EXACT_US = 2**40  # below this, a float of µs is exact to a tenth of a ns
_LONGEST_TEXT = 32
_DIGITS_US = 16
_ZERO = np.uint8(ord("0"))
INVALID = np.iinfo(np.int64).min


def nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Exact nanoseconds of timestamps written as microseconds.

    A float is too small: 1712195495505582.988 µs needs 61 bits.

    Args:
        texts: JSON numbers, or JSON strings that hold numbers.

    Returns:
        int64, shape (n,), ns; `INVALID` where a text is not a number or does not fit.

    Example:
        >>> nanoseconds([b"1712195495505582.988", b'"2"', b"NaN"]).tolist()[:2]
        [1712195495505582988, 2000]
    """
    if not texts:
        return np.zeros(0, np.int64)
    if (found := _by_digits(texts)) is not None:
        return found
    column = arrow_bytes(texts)
    if _longest(column) > _LONGEST_TEXT:  # Arrow would overflow, NumPy would widen every row to it
        return np.array([_by_decimal(text) for text in texts], np.int64)
    if not any(b"e" in text or b"E" in text for text in texts):  # 1e-725512145 crashes Arrow 26
        try:
            return _by_decimal_column(column)
        except pa.ArrowInvalid:
            pass
    try:
        return _by_float(texts)
    except ValueError:
        return np.array([_by_decimal(text) for text in texts], np.int64)


def _by_digits(texts: Sequence[bytes]) -> NDArray[np.int64] | None:
    """The times if all have equally many digits before the point and at most three after it.

    Only NumPy is used: importing Arrow's casts takes as long as reading a small trace.
    """
    place = len(texts[0].partition(b".")[0])
    width = max(map(len, texts))
    if not 0 < place <= _DIGITS_US or width > place + 4:
        return None
    table = np.array(texts, f"S{place + 4}").view(np.uint8).reshape(len(texts), -1)
    whole, point, rest = table[:, :place] - _ZERO, table[:, place], table[:, place + 1 :]
    rest = np.where(rest == 0, 0, rest - _ZERO)  # NumPy pads with NUL
    if (whole > 9).any() or (rest > 9).any() or not np.isin(point, (0, ord("."))).all():
        return None
    us = whole @ 10 ** np.arange(place - 1, -1, -1, dtype=np.int64)
    fits = (us < LIMIT_NS // 1000).all()
    return us * 1000 + rest @ np.array([100, 10, 1]) if fits else None


def _longest(column: pa.Array) -> int:
    ends = np.frombuffer(column.buffers()[1], np.int64)
    return int(np.diff(ends).max())


def _by_decimal_column(texts: pa.Array) -> NDArray[np.int64]:
    column = texts.cast(pa.large_string()).cast(pa.decimal128(21, 3))
    halves = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)[: len(texts)]
    value, high = halves[:, 0], halves[:, 1]
    fits = (high == value >> 63) & (np.abs(value) < LIMIT_NS)
    return np.where(fits, value, INVALID)


def _by_float(texts: Sequence[bytes]) -> NDArray[np.int64]:
    value = np.array(texts).astype(np.float64)
    if not (np.abs(value) < _EXACT_US).all():
        raise ValueError("a float would lose nanoseconds")
    return np.rint(value * 1000).astype(np.int64)


def _by_decimal(text: bytes) -> int:
    try:
        value = Decimal(text.decode("ascii").strip().strip('"')) * 1000
        return round(value) if abs(value) < LIMIT_NS else INVALID
    except (ArithmeticError, UnicodeDecodeError, ValueError):
        return INVALID
