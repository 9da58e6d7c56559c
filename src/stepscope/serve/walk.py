"""The timeline of a step in a single file: the costliest operations first, as far as there is room.

A file answers the same questions as the server, by the same functions; what is seldom read is cut
short.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from stepscope.serve.levels import names_of
from stepscope.serve.report import Report, Told, request_key
from stepscope.timeline.raw_events import Places, events_of

_FEW_ROWS = 5


class Walk:
    """The timeline of a step, the costliest operations first, as far as there is room for it.

    Args:
        report: what the file is about.
        step: path of the step.

    Attributes:
        step: as given.
        events: raw events of the step.
        unseen: operations that open, and are not told of yet, by cost: a heap.
    """

    def __init__(self, report: Report, step: str) -> None:
        self._subject, self.step = report, step
        timeline = report.opened.timeline
        self.events = timeline.raw_events(step)
        self._paths = [step]
        self._place = np.full(len(report.opened.trace.events), -1, np.int64)
        self._place[self.events] = 0
        self.unseen = [(0, step)]

    def __iter__(self) -> Iterator[list[Told]]:
        """The answers about each level, as one piece: without one of them the rest is of no use."""
        yield [self._details(self.step)]
        while self.unseen:
            _, path = heappop(self.unseen)
            yield list(self._level(path))

    def _level(self, path: str) -> Iterator[Told]:
        timeline = self._subject.opened.timeline
        every = shown = timeline.level(path)
        yield request_key("level", path=path), self._subject.ask("level", path=path)
        if any(not one.shown for one in shown.resources):
            every = timeline.level(path, every=True)
            query = {"every": "1", "path": path}
            yield request_key("level", **query), self._subject.ask("level", **query)
        for number, operation in enumerate(every.operations):
            inner = f"{path}/{operation.id}"
            yield self._details(inner)
            self._place[events_of(timeline.index, operation)] = len(self._paths)
            self._paths.append(inner)
            if every.costs.events[number] > 1:
                heappush(self.unseen, (-int(every.costs.runtime_ns[number]), inner))

    def _details(self, path: str) -> Told:
        told = self._subject.ask("details", path=path)
        for part in ("instances", "device_work"):
            if told[part]:
                told[part] = {**told[part], "rows": told[part]["rows"][:_FEW_ROWS]}
        told["selects"] = {name: rows[:_FEW_ROWS] for name, rows in told["selects"].items()}
        return request_key("details", path=path), told

    def names(self) -> Told:
        """The names of all raw events, and the smallest operation told of that holds each."""
        places = Places(self.events, self._paths, self._place[self.events])
        told = names_of(self._subject.opened, self.step, places)
        return request_key("names", path=self.step), told
