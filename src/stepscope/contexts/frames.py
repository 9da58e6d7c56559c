"""What a node stands for: frames are the same if kind, name, file and line are.

Source: DEEPCONTEXT section 4.2: Python frames are compared by file and line, operators by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import is_step

_PYTHON = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$")
_BUILTIN = re.compile(
    r"^<built-in (?:method|function) (\S+?)(?: of (.+?))?(?: at 0x[0-9a-fA-F]+)?>$"
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MODULE = re.compile(r"^(?:nn\.Module: |stepscope\.module: ?)(.*)$")
_KINDS = {"cpu_op": "operator"}


class Frame(NamedTuple):
    """One place in the program; `line` is -1 where unknown."""

    kind: str
    name: str
    file: str = ""
    line: int = -1


class Frames:
    """Distinct frames, each with a number.

    Example:
        >>> frames = Frames()
        >>> [frames.number(Frame("operator", name)) for name in ("mm", "add", "mm")]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, frame: Frame) -> int:
        """The number of a frame, a new one where it is new."""
        return self._numbers.setdefault(frame, len(self._numbers))

    def numbers(self, frames: Iterable[Frame]) -> NDArray[np.int64]:
        """The numbers of some frames, int64."""
        return np.array([self.number(frame) for frame in frames], np.int64)

    def all(self) -> list[Frame]:
        """The frames by their numbers."""
        return list(self._numbers)


def frame_of(name: str, category: str) -> Frame:
    """The frame of an event by its recorded name and category.

    Example:
        >>> frame_of("train.py(12): step", "python")
        Frame(kind='python', name='step', file='train.py', line=12)
    """
    if found := _MODULE.match(name):
        return Frame("module", found[1])
    if category == "python":
        return _python_frame(name)
    if is_step(name):
        return Frame("step", "step")
    return Frame(_KINDS.get(category, category), name)


def _python_frame(name: str) -> Frame:
    if found := _PYTHON.match(name):
        return Frame("python", found["name"], found["file"], int(found["line"]))
    if found := _BUILTIN.match(name):
        owner = (found[2] or "").removesuffix(" object")
        return Frame("python", found[1] if owner in ("", "type") else f"{owner}.{found[1]}")
    return Frame("python", _ADDRESS.sub("", name))
