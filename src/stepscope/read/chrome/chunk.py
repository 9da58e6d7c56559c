"""The columns of some consecutive events, as a decoder makes them of a piece of a file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Array, Codes32, Ids32, Times
from stepscope.trace.arguments import ArgumentBlock, parse

NO_IDENTITY = -(2**63)


class ChromePlace(NamedTuple):
    """What many events have in common: phase, category, process and thread, as recorded."""

    phase: str
    category: str
    process: Any
    thread: Any


class Label(NamedTuple):
    """A metadata event, which names its process or thread."""

    place: ChromePlace
    name: str
    arguments: bytes


@dataclass
class Chunk:
    """Consecutive events as columns of shape (events,), and metadata events.

    Codes are indices into lists of the chunk's own, in order of first appearance.
    """

    size: int  # number of records, metadata events included
    places: list[ChromePlace]  # distinct ones, those of metadata events included
    labels: list[Label]  # metadata events, at least the first with arguments of each place and name
    source: Ids32  # position of every other event among the records
    place: Codes32
    names: list[str]  # distinct ones
    name: Codes32
    # The `id` of each, else the text of its `id2`, else None; integers if none is text, with
    # `NO_IDENTITY` for None.
    identities: Times | list[Any]
    # `time_ns`, `duration_us`, and what some event has of `thread_duration_us` and `KnownArguments`.
    numbers: dict[str, Array] = field(default_factory=dict)
    arguments: Sequence[ArgumentBlock] = ()  # of those events that have some


# The arguments that become columns (`Arguments` keeps every argument as well), by their columns; and
# the value of such a column where an event lacks the argument.
KEYS = {
    "correlation": "correlation",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "bytes": "bytes",
    "allocation": "Bytes",
    "address": "Addr",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
}
DEFAULTS = {column: 0 if column in ("allocation", "device_type") else -1 for column in KEYS}


def known_arguments(text: bytes) -> list[int]:
    """The known arguments of one event, in the order of `KEYS`, each as int64.

    Numbers in strings are converted, and other types ignored.
    """
    values = parse(text)
    return [_integer(values.get(key), DEFAULTS[column]) for column, key in KEYS.items()]


def _integer(value: Any, default: int) -> int:
    """As int64: an unsigned address keeps its bits; a wider number becomes -1."""
    try:
        number = int(value) if isinstance(value, int | float | str) else default
    except (ValueError, OverflowError):
        return default
    return (number + 2**63) % 2**64 - 2**63 if abs(number) < 2**64 else -1


LIMIT_NS = 2**62  # differences of such times fit 64 bits
INVALID = np.iinfo(np.int64).min


def nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Exact nanoseconds of timestamps written as microseconds, shape (n,).

    They are JSON numbers, or JSON strings that hold numbers; a float is too small for them, since
    1712195495505582.988 µs needs 61 bits. `INVALID` where a text is not a number or does not fit.

    Example:
        >>> nanoseconds([b"1712195495505582.988", b'"2"', b"NaN"]).tolist()[:2]
        [1712195495505582988, 2000]
    """
    return np.array(list(map(_by_decimal, texts)), np.int64)


def _by_decimal(text: bytes) -> int:
    try:
        value = Decimal(text.decode("ascii").strip().strip('"')) * 1000
        return round(value) if abs(value) < LIMIT_NS else INVALID
    except (ArithmeticError, UnicodeDecodeError, ValueError):
        return INVALID
