"""Which optimizer stepped first, second and so on."""

from __future__ import annotations

import weakref
from typing import Any


class OptimizerOrder:
    """Numbers optimizers from 1 in the order of their first steps.

    An id alone is not enough: a sweep creates its next optimizer where the last one was.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.last = 0  # the highest number so far

    def number(self, optimizer: Any) -> int:
        """The number of an optimizer that steps."""
        known = self._known.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self.last += 1
            known = self._known[id(optimizer)] = weakref.ref(optimizer), self.last
        return known[1]
