"""The names of Python frames as PyTorch's profiler writes them."""

from __future__ import annotations

import re
from typing import NamedTuple

_FRAME = re.compile(r"^(.*)\((\d{1,9})\): (.*)$")  # a longer number is not a line


class FrameName(NamedTuple):
    """A Python frame; `str` gives the name of its event.

    Example:
        >>> FrameName.of("train.py(12): step"), str(FrameName("train.py", 12, "step"))
        (FrameName(file='train.py', line=12, function='step'), 'train.py(12): step')
    """

    file: str  # as recorded; PyTorch omits the folder of its package
    line: int  # in PyTorch's traces the first line of the function
    function: str

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.function}"

    @classmethod
    def of(cls, name: str) -> FrameName | None:
        """The frame of an event's name, None for other names."""
        match = _FRAME.match(name)
        return cls(match[1], int(match[2]), match[3]) if match else None
