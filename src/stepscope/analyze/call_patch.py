"""A patch: the call that creates an object, with other arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.syntax_trees import parse_source
from stepscope.trace.trace import Metadata

_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*)/")


@dataclass(frozen=True)
class Patch:
    """Lines of the user's program, and what to replace them with.

    Attributes:
        file: as recorded.
        line: the first of them.
        before, after: one or more lines without indentation, the same number of each.
    """

    file: str
    line: int
    before: str
    after: str

    @property
    def text(self) -> str:
        """The lines that change, each before and after: `- old`, `+ new`."""
        pairs = zip(self.before.split("\n"), self.after.split("\n"), strict=True)
        changed = [(old, new) for old, new in pairs if old != new]
        return "\n".join(f"- {old.strip()}\n+ {new.strip()}" for old, new in changed)


def patch_of(
    metadata: Metadata, what: str, arguments: Mapping[str, str | None], name: str = ""
) -> Patch | None:
    """The patch of the only call that creates such an object.

    Args:
        metadata: of a capture.
        what: `optimizer`, `loader` or `ddp`.
        arguments: source of the new values by name; None removes an argument.
        name: the class; by default any.

    Returns:
        None if the call is unknown, in a library, one of several, or has these arguments already.
    """
    found = [
        one
        for one in metadata.capture.get("created") or ()
        if one.get("what") == what and name in ("", one.get("class")) and one.get("call")
    ]
    if len(found) != 1 or _LIBRARY.search(found[0]["file"]):
        return None
    return _patched(found[0], arguments)


def _patched(created: Mapping[str, Any], arguments: Mapping[str, str | None]) -> Patch | None:
    call = str(created["call"])
    after = with_arguments(call, arguments)
    if after == call:
        return None
    source = str(created["source"])
    changed = source.replace(call, after, 1)
    if changed.count("\n") != source.count("\n"):
        return None  # an argument of several lines: no longer a line for a line
    return Patch(created["file"], created["line"], source, changed)


def with_arguments(call: str, arguments: Mapping[str, str | None]) -> str:
    """The source of a call with other keyword arguments.

    Returns:
        The same source if one of them cannot be changed.

    Example:
        >>> with_arguments("SGD(weights, foreach=False)", {"foreach": None, "fused": "True"})
        'SGD(weights, fused=True)'
    """
    changed = call
    for name, value in arguments.items():
        changed = _with_argument(changed, name, value)
        if not _passes(changed, name, value):
            return call
    return changed


def _with_argument(call: str, name: str, value: str | None) -> str:
    node = _parsed(call)
    known = next((one for one in node.keywords if one.arg == name), None) if node else None
    if node is None or (known is None and value is None):
        return call
    return _added(call, node, f"{name}={value}") if known is None \
        else _changed(call, known, value)  # fmt: skip


def _passes(call: str, name: str, value: str | None) -> bool:
    """Whether a call passes this value, or not the argument at all."""
    node = _parsed(call)
    if node is None:
        return False
    found = [ast.unparse(one.value) for one in node.keywords if one.arg == name]
    return found == ([] if value is None else [ast.unparse(parse_source(value, mode="eval"))])


def _changed(call: str, known: ast.keyword, value: str | None) -> str:
    """The call with another value of an argument, or without it."""
    begin, end = _offset(call, known.lineno, known.col_offset), _end(call, known.value)
    if value is not None:
        return f"{call[:begin]}{known.arg}={value}{call[end:]}"
    before, after = call[:begin], call[end:]
    if after.lstrip().startswith(","):
        return before + after.lstrip()[1:].lstrip(" ")
    return re.sub(r",[ \t]*$", "", before) + after


def _added(call: str, node: ast.Call, argument: str) -> str:
    """The call with one more argument, after the last."""
    values = [*node.args, *(one.value for one in node.keywords)]
    last = max((_end(call, one) for one in values), default=len(call) - 1)
    last += call[last:-1].rfind(")") + 1  # of an argument in parentheses
    return f"{call[:last]}{', ' if values else ''}{argument}{call[last:]}"


def _parsed(call: str) -> ast.Call | None:
    try:
        node = parse_source(call, mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None


def _offset(text: str, line: int, column: int) -> int:
    """The position of a line and column (in bytes of UTF-8) of the syntax tree."""
    lines = text.split("\n")
    before = sum(len(one) + 1 for one in lines[: line - 1])
    return before + len(lines[line - 1].encode()[:column].decode())


def _end(text: str, node: ast.expr) -> int:
    return _offset(text, node.end_lineno or node.lineno, node.end_col_offset or 0)
