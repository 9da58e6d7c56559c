"""The text before and after the array of events in a trace that is a JSON object."""

from __future__ import annotations

import json
import re
from typing import Any

from stepscope.errors import IngestError
from stepscope.ingest.chrome.json_text import NestingError, parse_json
from stepscope.ingest.chrome.records import Written, whole
from stepscope.ingest.chrome.tolerant_json import excerpt
from stepscope.ingest.unsupported import foreign_json

# A bracket, a whole string, or the beginning of a string that the text cuts off.
_TOKEN = re.compile(rb'[\[{\]}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_KEY = b'"traceEvents"'
_ARRAY = re.compile(rb"\s*:\s*\[")
_CUT = re.compile(rb"\s*:?\s*\Z")
_LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class ArrayFinder:
    """Finds the top-level array `traceEvents` in a growing text, scanning each byte once.

    Attributes:
        is_deep: whether the properties nest too deeply to be read; then they are left out.
        scanned: number of tokens scanned, for tests.
    """

    def __init__(self) -> None:
        self._position = self._depth = 0
        self._is_malformed = self.is_deep = False
        self.scanned = 0

    def find(self, text: bytes) -> tuple[dict[str, Any], int] | None:
        """The properties before the array and the start of its content, or None if not there yet.

        Args:
            text: a JSON object from its brace on; each call extends the text of the last call.
        """
        if self._is_malformed:
            return None
        for token in _TOKEN.finditer(text, self._position):
            self.scanned += 1
            start, end = token.span()
            is_key = self._depth == 1 and token[0] == _KEY
            if end == len(text) or (is_key and _CUT.match(text, end)):
                return None  # more text may complete it
            if is_key and (array := _ARRAY.match(text, end)):
                return self._header(text[:start], array.end())
            self._depth += _LEVELS.get(text[start], 0)
            self._position = end
        return None

    def _header(self, text: bytes, start: int) -> tuple[dict[str, Any], int] | None:
        try:
            header = _parsed(text + b'"traceEvents":[]}')
        except NestingError:
            self.is_deep = True
            return {}, start
        except ValueError:
            self._is_malformed = True
            return None
        header.pop("traceEvents")
        return header, start


def trailer(text: bytes) -> tuple[dict[str, Any], list[Any]] | None:
    """The properties after the array, and the events of further arrays under the same key."""
    text = b'{"":0' + text
    properties = load(text)
    if not isinstance(properties, dict):
        return None
    properties.pop("")
    if "traceEvents" not in properties:
        return properties, []
    properties.pop("traceEvents")
    top = _EVERY_ARRAY.decode(text.decode("utf-8", "surrogateescape"))
    return properties, top["traceEvents"]


def _joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which a repeated `traceEvents` holds the events of all its arrays."""
    data = dict(pairs)
    if "traceEvents" in data:
        arrays = [value for key, value in pairs if key == "traceEvents" and isinstance(value, list)]
        data["traceEvents"] = [event for array in arrays for event in array]
    return data


_EVERY_ARRAY = json.JSONDecoder(
    strict=False, parse_float=Written, parse_int=whole, object_pairs_hook=_joined
)


def no_array(text: bytes) -> IngestError:
    """The error for an object without the array of events."""
    data = load(text)
    if not isinstance(data, dict):
        return IngestError(
            "expected a top-level array `traceEvents`; found text that is not JSON: "
            f"{excerpt(text)}"
        )
    if "traceEvents" in data:
        kind = type(data["traceEvents"]).__name__
        return IngestError(f"expected `traceEvents` to be an array, found {kind}")
    keys = f"the keys {', '.join(list(data)[:8])}" if data else "nothing"
    hint = foreign_json(data)
    return IngestError(
        f"expected a top-level array `traceEvents`; found {keys}" + (f"; {hint}" if hint else "")
    )


def load(text: bytes) -> Any:
    """Parsed JSON as recorders write it, or None if it is malformed."""
    try:
        return _parsed(text)
    except ValueError:
        return None


def _parsed(text: bytes) -> Any:
    return parse_json(text.decode("utf-8", "replace"))
