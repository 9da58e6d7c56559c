"""Data of declared types, from JSON or from plain values, in any thread."""

from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = Lock()
_known: set[Any] = set()


def convert(value: Any, kind: type[T]) -> T:
    """A value as a declared type: a `msgspec.Struct`, or a type of them such as `list[Struct]`.

    Raises msgspec.ValidationError if the value does not have this type.

    Example:
        >>> class Point(msgspec.Struct):
        ...     x: int
        >>> convert({"x": 1}, Point)
        Point(x=1)
    """
    _learn(kind)
    return msgspec.convert(value, kind)


def decode(text: bytes | str, kind: type[T]) -> T:
    """A JSON text as a declared type.

    Raises msgspec.DecodeError if the text is not JSON or nests too deeply, its subclass ValidationError
    if it does not have this type.

    Example:
        >>> decode("[1, 2]", list[int])
        [1, 2]
    """
    _learn(kind)
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("it nests too deeply") from error


def _learn(kind: Any) -> None:
    """Let one thread alone have msgspec work out the fields of a type, and of those inside it.

    msgspec 0.22 publishes what it knows of a Struct before it knows its fields. Another thread that
    needs the Struct meanwhile reads a null pointer, and the process crashes.
    """
    if kind in _known:
        return
    with _lock:
        msgspec.json.Decoder(kind)
        _known.add(kind)
