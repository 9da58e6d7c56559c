"""Search: which operations of a level hold chosen events, such as events of one name."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.timeline.event_index import Index
from stepscope.timeline.level import Level
from stepscope.timeline.operation import Operation
from stepscope.timeline.operation_labels import short_name


class Marks:
    """Chosen events, to be counted in the operations of any level.

    Counting them inside an operation takes two look-ups, so that every level on screen is marked at
    once.

    Args:
        index: of the trace.
        chosen: the events, bool, shape (events,).

    Attributes:
        chosen: as given.
        total: how many they are.
    """

    def __init__(self, index: Index, chosen: Mask) -> None:
        self.chosen, self.total = chosen, int(chosen.sum())
        self._index = index
        self._before = _running(chosen[index.order])
        self._launched_before = _running(chosen[index.launched])

    def hits(self, level: Level) -> Ids:
        """Chosen events inside each operation of a level, int64, shape (operations,)."""
        return np.array([self._hits_of(one) for one in level.operations], np.int64)

    def _hits_of(self, operation: Operation) -> int:
        return self._inside(operation)

    def _inside(self, operation: Operation) -> int:
        index, rows = self._index, operation.rows
        if operation.kind == "step":
            return int(self.chosen[rows].sum())
        on_device = index.on_device[rows]
        first, end = index.inside(rows[~on_device])
        called, until = index.launches_inside(rows[~on_device])
        on_cpu = self._before[end] - self._before[first]
        launched = self._launched_before[until] - self._launched_before[called]
        return int(on_cpu.sum() + launched.sum() + self.chosen[rows[on_device]].sum())


class OperationSearch(Marks):
    """The events whose recorded or short name contains a text, in any case.

    An operation whose own name matches, as `forward`, counts as one where no event in it does.

    Args:
        index: of the trace.
        text: what to look for; an empty text is found nowhere.

    Source: HOTLINE appendix C.5 (Search).
    """

    def __init__(self, index: Index, text: str) -> None:
        self._text = text.casefold()
        super().__init__(index, index.events.text("name").where(self._matches))

    def _matches(self, name: str) -> bool:
        both = (name.casefold(), short_name(name).casefold())
        return bool(self._text) and any(self._text in one for one in both)

    def _hits_of(self, operation: Operation) -> int:
        return self._inside(operation) or self._matches(operation.name)


def _running(found: Mask) -> Ids:
    return np.concatenate([[0], np.cumsum(found)])
