"""JSON cut to a number of bytes: what is left out says how to ask for it."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError

LIMIT_BYTES = 4000  # of an answer by default: about a thousand tokens
MOST_BYTES = 64_000  # of an answer at most; chosen: a tenth of a large context window
_ROWS = (1000, 500, 250, 120, 80, 60, 45, 32, 24, 18, 13, 9, 6, 4, 3, 2, 1, 0)  # of a list; tried in turn
_FEWER = 3  # times fewer rows in each list inside another: the outer rows say more
_CHARACTERS = 300  # of a text; names of kernels run to thousands
_DIGITS = 5  # significant ones of a number that is no integer: more are noise
_MORE = "…"  # key of what a dict leaves out


def fitted_json(head: dict[str, Any], data: Any, part: str, first: int, limit_bytes: int) -> str:
    """An answer as JSON of at most a number of bytes.

    Args:
        head: what is always there.
        data: Structs, dicts and lists.
        part: keys and positions separated by dots (`findings.0.evidence`), to see that alone.
        first: the row of the part's list to begin with.
        limit_bytes: most bytes, up to `MOST_BYTES`.

    Raises:
        ServeError: if the data have no such part.
    """
    value = part_of(json.loads(json_bytes(data)), part)
    if first and not isinstance(value, list):
        raise ServeError(f"first needs a list, and {part or 'the answer'} is none; name one as part")
    limit = max(min(limit_bytes, MOST_BYTES), 500)
    for rows in _ROWS:
        text = _written(head | {"data": _cut(value, part, rows, first)})
        if len(text.encode()) <= limit:
            return text
    return _written(head | {"data": _outline(value, limit // 2)})


def part_of(value: Any, part: str) -> Any:
    """The value at a path of keys and positions.

    Example:
        >>> part_of({"rows": [{"ms": 3}]}, "rows.0.ms")
        3
    """
    for key in filter(None, part.split(".")):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            names = (
                ", ".join(value)
                if isinstance(value, dict)
                else f"{len(value)} rows"
                if isinstance(value, list)
                else "no parts"
            )
            raise ServeError(f"no part {key[:80]!r} in {part[:80]!r}; there: {names[:500]}")
    return value


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _cut(value: Any, part: str, rows: int, first: int = 0) -> Any:
    """A value with at most so many rows in its lists, fewer in those inside them."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= _CHARACTERS else value[: _CHARACTERS - 1] + "…"
    if isinstance(value, list):
        kept = value[first : first + rows]
        shown = [_cut(inner, _inside(part, first + at), rows // _FEWER) for at, inner in enumerate(kept)]
        rest = len(value) - first - len(kept)
        return (
            [*shown, f"… {rest} more of {len(value)}: {_how(part, first + len(kept))}"] if rest > 0 else shown
        )
    if isinstance(value, dict):
        kept = list(value.items())[: max(rows * _FEWER, 30)]
        shown = {key: _cut(inner, _inside(part, key), rows) for key, inner in kept}
        rest = len(value) - len(kept)
        return {**shown, _MORE: f"{rest} more of {len(value)} keys"} if rest > 0 else shown
    return value


def _inside(part: str, key: object) -> str:
    return f"{part}.{key}" if part else str(key)


def _how(part: str, first: int) -> str:
    """The arguments that show what is left out."""
    return (
        ", ".join(filter(None, [f"part={part}" if part else "", f"first={first}" if first else ""]))
        or "first=0"
    )


def _outline(value: Any, limit: int) -> Any:
    """What parts there are, where even a row of each does not fit."""
    names = ", ".join(value) if isinstance(value, dict) else f"{len(value)} rows"
    return {_MORE: f"too large for limit_bytes; parts: {names}"[:limit]}
