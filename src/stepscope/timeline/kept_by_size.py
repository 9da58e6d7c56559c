"""A cache that is bounded by the size of what it holds."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class KeptBySize(Generic[Key, Value]):
    """Values used last, as long as they have room; the newest stays however large it is.

    Threads may share it.

    Args:
        room: total size of what is kept.
        size_of: the size of a value.

    Example:
        >>> kept = KeptBySize[str, str](room=5, size_of=len)
        >>> for word in ("two", "to", "too"):
        ...     kept.set(word, word)
        >>> kept.get("two"), kept.get("to")
        (None, 'to')
    """

    def __init__(self, room: int, size_of: Callable[[Value], int]) -> None:
        self._room, self._size_of = room, size_of
        self._values: dict[Key, Value] = {}
        self._size = 0
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """A value, which becomes the last to be dropped; None if it is not kept."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def set(self, key: Key, value: Value) -> None:
        """Keep a value, and drop those that were not used for longest where there is no room."""
        with self._lock:
            if (before := self._values.pop(key, None)) is not None:
                self._size -= self._size_of(before)
            self._values[key] = value
            self._size += self._size_of(value)
            while self._size > self._room and len(self._values) > 1:
                self._size -= self._size_of(self._values.pop(next(iter(self._values))))
