"""Source lines in the names of ranges that `stepscope batch` and `run --memory` record."""

from __future__ import annotations

LINES_RANGE = "stepscope.lines: "
Line = tuple[str, int]


def has_lines(name: str) -> bool:
    """Whether an event of this name is such a range.

    Example:
        >>> has_lines("stepscope.lines: /a.py:3"), has_lines("aten::mm")
        (True, False)
    """
    return name.startswith(LINES_RANGE)


def parse_lines(name: str) -> tuple[Line, ...]:
    """The stack in the name of a range, outermost line first.

    Example:
        >>> parse_lines("stepscope.lines: /a.py:3|/b.py:7")
        (('/a.py', 3), ('/b.py', 7))
    """
    places = name.removeprefix(LINES_RANGE).split("|")
    pairs = (place.rpartition(":") for place in places)
    return tuple((file, int(line)) for file, _, line in pairs if line.isdecimal())
