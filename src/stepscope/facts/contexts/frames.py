"""Frames (places in the program that a node represents), and elements of a forest without an event.

Frames are equal if their kind, name, file and line are.

Source: DEEPCONTEXT section 4.2: Python frames are compared by file and line, operators by name.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.range_names import is_step
from stepscope.trace.frame_name import FrameName
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CONTEXT_KINDS, VIAS
from stepscope.trace.sets import Interner
from stepscope.trace.trace import Trace

_BUILTIN = re.compile(r"^<built-in (?:method|function) (\S+?)(?: of (.+?))?(?: at 0x[0-9a-fA-F]+)?>$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MODULE = re.compile(r"^(?:nn\.Module: |stepscope\.module: ?)(.*)$")
_KINDS = {"cpu_op": "operator"}
_CALL = VIAS.index("call")
LEFT_OUT = -2  # the parent of an event that the tree leaves out
_NOTHING_KNOWN = np.full(1, -1, np.int64)
_HAS_MODULE = tuple(CONTEXT_KINDS.index(kind) for kind in ("module", "operator"))
_OPERATOR_LIKE = tuple(CONTEXT_KINDS.index(kind) for kind in ("operator", "runtime", "communication"))


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
    if match := _MODULE.match(name):
        return Frame("module", match[1])
    if category == "python":
        return _python_frame(name)
    return Frame("step", "step") if is_step(name) else Frame(_KINDS.get(category, category), name)


def _python_frame(name: str) -> Frame:
    if frame := FrameName.of(name):
        return Frame("python", frame.function, frame.file, frame.line)
    if match := _BUILTIN.match(name):
        owner = (match[2] or "").removesuffix(" object")
        return Frame("python", match[1] if owner in ("", "type") else f"{owner}.{match[1]}")
    return Frame("python", _ADDRESS.sub("", name))


class SyntheticElements:
    """Elements that are numbered after some number of events."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._parent: list[int] = []
        self._frame: list[int] = []
        self._via: list[int] = []

    @property
    def next(self) -> int:
        """The number of the element that is added next."""
        return self._events + len(self._parent)

    def add(self, parent: int, frame: int) -> int:
        """A new element and its number."""
        self.extend(np.array([parent]), np.array([frame]))
        return self.next - 1

    def extend(self, parents: Ids, frames: Ids, via: int = _CALL) -> None:
        """New elements, numbered in order from `next` on; `via` is a code of `VIAS`."""
        self._parent.extend(parents.tolist())
        self._frame.extend(frames.tolist())
        self._via.extend([via] * len(parents))

    def nest(self, caller: Ids, item: Ids, outer: Ids, frame: Ids, known: Ids = _NOTHING_KNOWN) -> Ids:
        """One element per caller and item, and per item around it; all integers, shape (n,).

        Args:
            item: what goes below it: a module, or a frame of a traced operation.
            outer: the item around each item, -1 for none, shape (items,).
            frame: the number of the frame of each item, shape (items,).
            known: the item that the path of each event has already, shape (events,).
        """
        span = len(outer)
        layers = [np.unique(caller * span + item)]
        while len(layers[-1]):
            above, inner = np.divmod(layers[-1], span)
            keep = (outer[inner] >= 0) & (outer[inner] != _at(known, above))
            layers.append(np.unique(above[keep] * span + outer[inner[keep]]))
        pairs, begin = np.unique(np.concatenate(layers)), self.next
        above, inner = np.divmod(pairs, span)
        nested = (outer[inner] >= 0) & (outer[inner] != _at(known, above))
        around = begin + np.searchsorted(pairs, above * span + outer[inner])
        self.extend(np.where(nested, around, above), frame[inner])
        return begin + np.searchsorted(pairs, caller * span + item)

    def columns(self) -> list[Ids]:
        """The parent, the frame, and the relation to the parent of each, int64."""
        return [np.array(column, np.int64) for column in (self._parent, self._frame, self._via)]


def module_frames(trace: Trace, frames: Frames) -> Ids:
    """The frame of each module: its path, and the line of its call, else of its class."""
    rows = trace["modules"].rows()
    codes = frames.codes(Frame("module", row["path"] or row["name"] or "model", *_place(row)) for row in rows)
    return codes.astype(np.int64)


def _place(row: dict[str, Any]) -> tuple[str, int]:
    where = "call_" if row["call_file"] else ""
    line = row[f"{where}line"]
    return row[f"{where}file"] or "", -1 if line is None else line


def is_operator(kind: Ids) -> Mask:
    """Whether elements of these kinds are operators, or calls that can take an operator's place."""
    return np.isin(kind, _OPERATOR_LIKE)


def wrap_in_modules(
    trace: Trace, parent: Ids, wanted: Mask, kind: Ids, frames: Frames, synthetic: SyntheticElements
) -> Ids:
    """The new callers of operators that go below their module where their path has no frame for it.

    That is the case where modules were matched by names, for backward work without a forward call,
    and for kernels of compiled code, which carry their module themselves. Each caller gets one
    element per such module and per module around it.

    Args:
        wanted: which events to put below their modules, bool, shape (events,).
        kind: code of `CONTEXT_KINDS` of each event, int64, shape (events,).
        frames, synthetic: extended with the new frames and elements.
    """
    own = trace.events["module"].astype(np.int64)
    if own.max(initial=-1) < 0:
        return parent
    outer = trace["modules"]["parent"].astype(np.int64)
    known = _known_module(parent, own, kind)
    around = _at(known, parent)
    rows = np.flatnonzero(wanted & (own >= 0) & (own != around) & (parent != LEFT_OUT))
    rows = rows[_is_below(own[rows], around[rows], outer)]
    result = parent.copy()
    result[rows] = synthetic.nest(parent[rows], own[rows], outer, module_frames(trace, frames), known)
    return result


def _known_module(parent: Ids, own: Ids, kind: Ids) -> Ids:
    """The module that the path of each event contains, the event included, -1 for none."""
    in_path = np.where(np.isin(kind, _HAS_MODULE), own, -1)
    inside = np.where(parent < len(parent), parent, -1)
    return inherit(np.maximum(inside, -1).astype(np.int32), in_path).astype(np.int64)


def _at(values: Ids, rows: Ids) -> Ids:
    """The values at rows that are events, -1 elsewhere."""
    inside = (rows >= 0) & (rows < len(values))
    return np.where(inside, values[np.where(inside, rows, 0)], -1)


def _is_below(module: Ids, around: Ids, outer: Ids) -> Mask:
    """Whether `module` is inside `around`; every module is inside -1."""
    at = module.copy()
    while (rising := (at >= 0) & (at != around)).any():
        at[rising] = outer[at[rising]]
    return at == around
