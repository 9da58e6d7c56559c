"""The arguments of events that become columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from stepscope.trace.arguments import parse


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


FIELDS = dict(
    zip(KnownArguments.__struct_fields__, KnownArguments.__struct_encode_fields__, strict=True)
)
DEFAULTS = KnownArguments()
_KNOWN = msgspec.json.Decoder(list[KnownArguments | None])
_ONE_KNOWN = msgspec.json.Decoder(KnownArguments | None)
_LONG_BYTES = 150  # per event


def default_of(name: str) -> int:
    """The value of a column where an event lacks the argument."""
    return int(getattr(DEFAULTS, name))


def decode_known(joined: bytes, texts: Sequence[bytes | Raw]) -> list[KnownArguments]:
    """The known arguments of some events.

    Args:
        joined: `texts` with commas between them.
        texts: of the arguments of each event.
    """
    try:
        found = _KNOWN.decode(b"[" + joined + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return [known_of(text) for text in texts]
    return [DEFAULTS if arguments is None else arguments for arguments in found]


def known_of(text: bytes | Raw) -> KnownArguments:
    """The known arguments of one event."""
    try:
        return _ONE_KNOWN.decode(text) or DEFAULTS
    except (msgspec.MsgspecError, RecursionError):
        return _coerced(text)


def _coerced(text: bytes | Raw) -> KnownArguments:
    """Known arguments of unexpected types: numbers in strings are converted, the rest ignored."""
    try:
        values = parse(bytes(text))
    except (ValueError, RecursionError):
        return DEFAULTS
    found = {field: _integer(values.get(key)) for field, key in FIELDS.items()}
    return KnownArguments(**{field: value for field, value in found.items() if value is not None})


def _integer(value: Any) -> int | None:
    try:
        number = int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number


def fields_in(text: bytes, count: int) -> list[str]:
    """The known arguments that may occur in some text.

    A search for an absent argument scans all of the text, so long texts are not searched.

    Args:
        text: the arguments of each event, with commas between them.
        count: number of events.
    """
    if len(text) > _LONG_BYTES * count:
        return list(FIELDS)
    return [field for field, key in FIELDS.items() if b'"%b"' % key.encode() in text]


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
