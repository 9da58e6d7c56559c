"""Frames: the place in the program that a node represents.

Frames are equal if their kind, name, file and line are.

Source: DEEPCONTEXT section 4.2: Python frames are compared by file and line, operators by name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stepscope.annotate.range_names import is_step
from stepscope.trace.frame_name import FrameName
from stepscope.trace.interner import Interner

_BUILTIN = re.compile(
    r"^<built-in (?:method|function) (\S+?)(?: of (.+?))?(?: at 0x[0-9a-fA-F]+)?>$"
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MODULE = re.compile(r"^(?:nn\.Module: |stepscope\.module: ?)(.*)$")
_KINDS = {"cpu_op": "operator"}


class Frame(NamedTuple):
    """One place in the program; `line` is -1 if unknown."""

    kind: str
    name: str
    file: str = ""
    line: int = -1


Frames = Interner[Frame]


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
    if frame := FrameName.of(name):
        return Frame("python", frame.function, frame.file, frame.line)
    if found := _BUILTIN.match(name):
        owner = (found[2] or "").removesuffix(" object")
        return Frame("python", found[1] if owner in ("", "type") else f"{owner}.{found[1]}")
    return Frame("python", _ADDRESS.sub("", name))
