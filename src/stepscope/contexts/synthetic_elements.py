"""Elements of a forest without an event: the root, threads, modules."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.trace.schema import VIAS

_CALL = VIAS.index("call")


class SyntheticElements:
    """Elements that are numbered after the events.

    Args:
        events: number of events.
    """

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

    def parents(self) -> Ids:
        """The parent of each, int64."""
        return np.array(self._parent, np.int64)

    def frames(self) -> Ids:
        """The number of the frame of each, int64."""
        return np.array(self._frame, np.int64)

    def vias(self) -> Ids:
        """How each is related to its parent, int64."""
        return np.array(self._via, np.int64)
