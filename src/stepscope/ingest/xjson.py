"""Stats of XLA's events as parts of JSON objects, which a trace keeps as the events' arguments."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from stepscope.ingest.wire import Offsets, Span
from stepscope.trace.interner import Interner


class Further(NamedTuple):
    """An argument of the events of a batch: its distinct values, and which each event has.

    An empty value is none.
    """

    name: str
    values: list[str]
    which: Offsets

    def json(self) -> list[list[bytes]]:
        """Each value as parts of a JSON object: one, or none."""
        return [[b"%b:%b" % (quoted(self.name), quoted(one))] if one else [] for one in self.values]


class QuotedWords(dict[int, bytes]):
    """A text as JSON by its code."""

    def __init__(self, words: Interner[str]) -> None:
        self._words = words
        self._texts: list[str] = []

    def __missing__(self, code: int) -> bytes:
        if code >= len(self._texts):
            self._texts = list(self._words)
        text = self[code] = quoted(self._texts[code])
        return text


def quoted(text: str) -> bytes:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False).encode()


def as_json(value: Any) -> bytes:
    """A value as JSON; bytes, whose meaning is not known, are only named."""
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)  # JSON has no such number
    return b'"bytes"' if isinstance(value, Span) else json.dumps(value, ensure_ascii=False).encode()
