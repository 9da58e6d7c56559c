"""Stats of XLA events as parts of JSON objects, which become the events' arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from stepscope.arrays import ByteOffsets
from stepscope.ingest.xplane.protobuf import Span
from stepscope.trace.interner import Interner


class Further(NamedTuple):
    """Arguments of the events of a batch that are not among their stats.

    Attributes:
        parts: the distinct sets of arguments, each as parts of a JSON object.
        which: the index in `parts` for each event.
    """

    parts: list[list[bytes]]
    which: ByteOffsets


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


def parts_of(values: Mapping[str, str | float]) -> list[bytes]:
    """Texts and whole numbers by name as parts of a JSON object, without empty and unknown ones."""
    return [
        b"%b:%b" % (quoted(name), quoted(value) if isinstance(value, str) else b"%d" % value)
        for name, value in values.items()
        if (value if isinstance(value, str) else math.isfinite(value))
    ]


def as_json(value: Any) -> bytes:
    """A value as JSON; for bytes of unknown meaning, the string "bytes"."""
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)  # JSON has no such number
    return b'"bytes"' if isinstance(value, Span) else json.dumps(value, ensure_ascii=False).encode()
