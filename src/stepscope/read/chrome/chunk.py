"""The columns of some consecutive events, as a decoder makes them of a piece of a file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw, Struct
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

    @property
    def is_label(self) -> bool:
        """Whether events of this phase name a process or a thread."""
        return self.phase == "M"


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


class KnownArguments(Struct, gc=False):
    """The arguments that become columns; `Arguments` keeps every argument as well."""

    correlation: int = -1
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    bytes: int = -1
    allocation: int = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=-1, name="Addr")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")


FIELDS = dict(zip(KnownArguments.__struct_fields__, KnownArguments.__struct_encode_fields__, strict=True))
DEFAULTS = KnownArguments()
_KNOWN = msgspec.json.Decoder(KnownArguments | None)


def default_of(name: str) -> int:
    """The value of a column where an event lacks the argument."""
    return int(getattr(DEFAULTS, name))


def known_of(text: bytes | Raw) -> KnownArguments:
    """The known arguments of one event."""
    try:
        return _KNOWN.decode(text) or DEFAULTS
    except (msgspec.MsgspecError, RecursionError):
        return _coerced(text)


def _coerced(text: bytes | Raw) -> KnownArguments:
    """Known arguments of unexpected types: numbers in strings are converted, the rest ignored."""
    values = parse(bytes(text))
    numbers = {field: _integer(values.get(key)) for field, key in FIELDS.items()}
    return KnownArguments(**{field: value for field, value in numbers.items() if value is not None})


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def integers(known: Iterable[KnownArguments], field: str) -> NDArray[np.int64]:
    """A known argument of each event, shape (n,); a number that does not fit is wrapped or -1."""
    values = list(map(attrgetter(field), known))
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(list(map(_wrapped, values)), np.int64)


def _wrapped(value: int) -> int:
    """As int64: an unsigned address keeps its bits; a wider number becomes -1."""
    return (value + 2**63) % 2**64 - 2**63 if abs(value) < 2**64 else -1


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
