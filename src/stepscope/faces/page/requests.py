"""A request's parameters, parsed and checked, and its answer as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from threading import Lock, Thread, stack_size
from typing import Any, TypeVar

import msgspec

from stepscope.errors import ServeError

_DEEP = 100_000  # levels
_STACK_BYTES = 256 << 20  # 2.6 kB for each level
Answer = TypeVar("Answer", bound=msgspec.Struct)
_limits = Lock()  # the limit of recursion and the size of stacks are the whole process's


class Query:
    """Parameters by name; an empty one counts as missing."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name: value for name, value in (values or {}).items() if value}

    def text(self, name: str) -> str:
        """A text, empty if missing."""
        return self._values.get(name, "")

    def number(self, name: str) -> int | None:
        """A whole number of at most 18 digits, None if missing.

        Raises:
            ServeError: if it is anything else.
        """
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ServeError(f"expected {name} to be a whole number, found {text[:40]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether it is 1.

        Raises:
            ServeError: if it is neither 0 nor 1.
        """
        text = self._values.get(name, "0")
        if text not in ("0", "1"):
            raise ServeError(f"expected {name} to be 0 or 1, found {text[:40]!r}")
        return text == "1"


def filled(kind: type[Answer], source: object, **others: Any) -> Answer:
    """A Struct with the attributes of the same names that an object has, and others."""
    names = (name for name in kind.__struct_fields__ if name not in others)
    return kind(**{name: getattr(source, name) for name in names}, **others)


def encode(value: Any) -> bytes:
    r"""JSON in UTF-8; NaN and infinity become null, bytes of names that are not UTF-8 `\udcff`."""
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        return _encode_deep(value)
    except UnicodeEncodeError:  # the name of a file can be any bytes
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(one) for key, one in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, list | tuple) else value


def _encode_deep(value: Any) -> bytes:
    """The same for what nests hundreds of levels, in a thread with room for them."""
    found: list[bytes] = []
    thread = Thread(target=lambda: found.append(msgspec.json.encode(value)))
    with _limits:
        usual_levels, usual_size = sys.getrecursionlimit(), stack_size(_STACK_BYTES)
        try:
            sys.setrecursionlimit(_DEEP)
            thread.start()
            thread.join()
        finally:
            stack_size(usual_size)
            sys.setrecursionlimit(usual_levels)
    if not found:
        raise RecursionError("the answer nests too deeply to be written as JSON")
    return found[0]
