"""Elements of a forest that stand for no event: the root, a thread, a module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Elements:
    """Elements numbered after the events.

    Args:
        events: how many events there are.
    """

    def __init__(self, events: int) -> None:
        self._events = events
        self._parent: list[int] = []
        self._frame: list[int] = []

    @property
    def next(self) -> int:
        """The number of the element that is added next."""
        return self._events + len(self._parent)

    def add(self, parent: int, frame: int) -> int:
        """A new element and its number."""
        self.extend(np.array([parent]), np.array([frame]))
        return self.next - 1

    def extend(self, parents: Ids, frames: Ids) -> None:
        """New elements, numbered in order from `next` on."""
        self._parent.extend(parents.tolist())
        self._frame.extend(frames.tolist())

    def parents(self) -> Ids:
        """The parent of each, int64."""
        return np.array(self._parent, np.int64)

    def frames(self) -> Ids:
        """The number of the frame of each, int64."""
        return np.array(self._frame, np.int64)
