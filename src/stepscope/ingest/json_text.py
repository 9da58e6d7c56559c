"""JSON of somebody else's hand, as text that can be stored and printed."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """What some JSON says; half of a pair of surrogates, which no file can hold, becomes `?`.

    Control characters in strings count as themselves, as some recorders write them.

    Raises:
        ValueError: if it is no JSON.
        RecursionError: if it nests too deeply.
    """
    value = json.loads(text, strict=False)
    if _SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value
