"""What stands before and after the array of events in a trace that is a JSON object."""

from __future__ import annotations

import json
import re
from typing import Any

from stepscope.errors import IngestError
from stepscope.ingest.json_text import parse_json
from stepscope.ingest.patient import excerpt
from stepscope.ingest.records import Written, whole

_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')


def find_array(text: bytes) -> tuple[dict[str, Any], int] | None:
    """The properties before the top-level array `traceEvents`, and where its content begins."""
    for match in _ARRAY.finditer(text):
        # Only at the top level does closing the array and one brace make it whole.
        header = load(text[: match.start()] + b'"traceEvents":[]}')
        if isinstance(header, dict):
            header.pop("traceEvents")
            return header, match.end()
    return None


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
    """Why an object without the array is no trace."""
    data = load(text)
    if not isinstance(data, dict):
        return IngestError(
            "expected a trace with a top-level array `traceEvents`; found text that is not "
            f"JSON and holds none: {excerpt(text)}"
        )
    if "traceEvents" in data:
        kind = type(data["traceEvents"]).__name__
        return IngestError(f"expected `traceEvents` to be an array, found {kind}")
    keys = f"the keys {', '.join(list(data)[:8])}" if data else "nothing"
    hint = (
        "; this is a PyTorch execution trace: give the Kineto trace of the same run"
        if "nodes" in data and "schema" in data
        else ""
    )
    return IngestError(f"expected a top-level array `traceEvents`; found {keys}{hint}")


def load(text: bytes) -> Any:
    """Parsed JSON as recorders write it, or None where it is not even that."""
    try:
        return parse_json(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
