"""Syntax trees of Python source, one at a time.

CPython 3.11 counts the depth of all trees that are being made in one number: a thread that goes on
while another is in the middle of its tree gets a `SystemError` (as in python/cpython#106905). The
other may be one of the standard library, which parses lines to show a traceback.
"""

import ast
from contextlib import suppress
from threading import RLock
from typing import Any

_ONE_AT_A_TIME = RLock()  # a finalizer of the same thread may parse, too
_TRIES = 10  # of a parse that another thread may disturb


def parse_source(text: str, file: str = "<unknown>", mode: str = "exec") -> Any:
    """`ast.parse`, from any thread; `mode` is `"exec"` for statements, `"eval"` for one expression."""
    with _ONE_AT_A_TIME:
        for _ in range(_TRIES - 1):
            with suppress(SystemError):
                return ast.parse(text, file, mode)
        return ast.parse(text, file, mode)


def parse_call(text: str) -> ast.Call | None:
    """The syntax tree of one call, None if the text is anything else.

    Example:
        >>> parse_call("DataLoader(data, 8)").func.id
        'DataLoader'
        >>> parse_call("8 +") is parse_call("8") is None
        True
    """
    with suppress(SyntaxError):
        node = parse_source(text, mode="eval").body
        return node if isinstance(node, ast.Call) else None
    return None
