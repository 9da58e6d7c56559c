"""JSON cut to a number of bytes: what is left out says how to ask for it."""

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
_OF_A_ROW = 64  # of a text that is asked for alone; 1,000 rows are all that an answer has room for
_SHORT = 6  # scalars of a list that is kept whole
_KEYS = 30  # of a dict that are always there: more than a Struct has
_DIGITS = 5  # significant ones of a number that is no integer: more are noise
_LONGEST_ROW = 19  # digits of a row that are read: Python converts no more than 4,300
_LONGEST = 6  # bytes of a character in JSON, as `\\u0000`
_MORE = "…"  # key of what a dict leaves out


def fitted_json(head: dict[str, Any], data: Any, part: str, first: int, limit_bytes: int) -> str:
    """An answer, a head and data, as JSON of at most a number of bytes, up to `MOST_BYTES`.

    Args:
        part: keys and positions separated by dots (`findings.0.evidence`), to see that alone.
        first: the row of the part's list to begin with.

    Raises:
        ServeError: if the data have no such part.
    """
    value = part_of(json.loads(json_bytes(data)), part)
    if first and not isinstance(value, list):
        raise ServeError(f"first needs a list, and {part or 'the answer'} is none; name one as part")
    limit = max(min(limit_bytes, MOST_BYTES), 500)
    for rows in _ROWS:
        is_text = isinstance(value, str)
        cut = _shortened(value, rows * _OF_A_ROW) if is_text else _cut(value, part, rows, first)
        text = _written(head | {"data": cut})
        if len(text.encode()) <= limit:
            return text
    outline = f"too large for limit_bytes; parts: {_names(value)}"
    return _written(head | {"data": {_MORE: outline[: limit // 2 // _LONGEST]}})


def part_of(value: Any, part: str) -> Any:
    """The value at a path of keys and positions."""
    for key in filter(None, part.split(".")):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key[:_LONGEST_ROW]) < len(value):
            value = value[int(key)]
        else:
            names = _names(value)
            raise ServeError(f"no part {key[:80]!r} in {part[:80]!r}; there: {names[:500]}")
    return value


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _cut(value: Any, part: str, rows: int, first: int = 0) -> Any:
    """A value with at most so many rows in its lists, fewer in those inside them."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str):
        return _shortened(value, _CHARACTERS)
    if isinstance(value, list):
        return _cut_list(value, part, max(rows, _SHORT if _is_short(value) else 0), first)
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if inner not in ("", None)}
        shown = {key: _cut(value[key], _inside(part, key), rows) for key in [*value][: max(rows, _KEYS)]}
        rest = len(value) - len(shown)
        return {**shown, _MORE: f"{rest} more of {len(value)} keys"} if rest else shown
    return value


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def _cut_list(values: list[Any], part: str, rows: int, first: int) -> list[Any]:
    kept = values[first : first + rows]
    shown = [_cut(inner, _inside(part, first + at), rows // _FEWER) for at, inner in enumerate(kept)]
    rest = len(values) - first - len(kept)
    if rest > 0:
        where = f"part={part}, " if part else ""
        shown.append(f"… {rest} more of {len(values)}: {where}first={first + len(kept)}")
    return shown


def _is_short(values: list[Any]) -> bool:
    """Whether it is rather one value than rows: a range, a place, some names."""
    return len(values) <= _SHORT and not any(isinstance(inner, list | dict) for inner in values)


def _inside(part: str, key: object) -> str:
    return f"{part}.{key}" if part else str(key)


def _names(value: Any) -> str:
    """What parts a value has."""
    if isinstance(value, list):
        return f"rows 0 to {len(value) - 1}"
    return ", ".join(value) if isinstance(value, dict) else "none"
