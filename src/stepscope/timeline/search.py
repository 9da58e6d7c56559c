"""Search: which operations of any level hold events of a name."""

from __future__ import annotations

import numpy as np

from stepscope.timeline.index import Ids, Index
from stepscope.timeline.level import Level
from stepscope.timeline.names import short_name
from stepscope.timeline.operation import Operation


class Search:
    """The events whose recorded or short name contains a text, in any case.

    Counting them inside an operation takes two look-ups, so that every level on screen is marked at
    once.

    Args:
        index: of the trace.
        text: what to look for; an empty text is found nowhere.

    Attributes:
        total: how many events are found.

    Source: HOTLINE appendix C.5 (Search).
    """

    def __init__(self, index: Index, text: str) -> None:
        self._index, self._text = index, text.casefold()
        names = index.events.text("name")
        found = names.where(self._matches)
        self.total = int(found.sum())
        self._before = _running(found[index.order])
        self._launched_before = _running(found[index.launched])
        self._found = found

    def _matches(self, name: str) -> bool:
        both = (name.casefold(), short_name(name).casefold())
        return bool(self._text) and any(self._text in one for one in both)

    def hits(self, level: Level) -> Ids:
        """Events found inside each operation of a level; a name of its own that matches counts one.

        Returns:
            int64, shape (operations,).
        """
        counts = [self._inside(one) or self._matches(one.name) for one in level.operations]
        return np.array(counts, np.int64)

    def _inside(self, operation: Operation) -> int:
        index, rows = self._index, operation.rows
        if operation.kind == "step":
            return int(self._found[rows].sum())
        on_device = index.on_device[rows]
        first, end = index.inside(rows[~on_device])
        called, until = index.launches_inside(rows[~on_device])
        on_cpu = self._before[end] - self._before[first]
        launched = self._launched_before[until] - self._launched_before[called]
        return int(on_cpu.sum() + launched.sum() + self._found[rows[on_device]].sum())


def _running(found: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ids:
    return np.concatenate([[0], np.cumsum(found)])
