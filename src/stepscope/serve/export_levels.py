"""The timeline of a step in a single file: the costliest operations first, while there is room.

The answers come from the same functions as the server's; long tables are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
from msgspec.structs import replace

from stepscope.serve.export_request import KeyedAnswer, Report, request_key
from stepscope.serve.operation_details import Details
from stepscope.serve.pane_answers import Selects
from stepscope.serve.timeline_answers import names_of
from stepscope.timeline.raw_events import Places, events_of

_FEW_ROWS = 5


class TimelineExport:
    """The timeline of a step, the costliest operations first.

    Args:
        report: what the file covers.
        step: path of the step.

    Attributes:
        step: as given.
        events: raw events of the step.
        pending: operations that open and are not exported yet, by cost: a heap.
    """

    def __init__(self, report: Report, step: str) -> None:
        self._report, self.step = report, step
        timeline = report.view.timeline
        self.events = timeline.raw_events(step)
        self._paths = [step]
        self._place = np.full(len(report.view.trace.events), -1, np.int64)
        self._place[self.events] = 0
        self.pending = [(0, step)]

    def __iter__(self) -> Iterator[list[KeyedAnswer]]:
        """The answers about each level, to be written together or not at all."""
        yield [self._details(self.step)]
        while self.pending:
            _, path = heappop(self.pending)
            yield list(self._level(path))

    def _level(self, path: str) -> Iterator[KeyedAnswer]:
        timeline = self._report.view.timeline
        every = shown = timeline.level(path)
        yield request_key("level", path=path), self._report.ask("level", path=path)
        if any(not resource.shown for resource in shown.resources):
            every = timeline.level(path, every=True)
            query = {"every": "1", "path": path}
            yield request_key("level", **query), self._report.ask("level", **query)
        for row, operation in enumerate(every.operations):
            inner = f"{path}/{operation.id}"
            yield self._details(inner)
            self._place[events_of(timeline.index, operation)] = len(self._paths)
            self._paths.append(inner)
            if every.costs.events[row] > 1:
                heappush(self.pending, (-int(every.costs.runtime_ns[row]), inner))

    def _details(self, path: str) -> KeyedAnswer:
        return request_key("details", path=path), _short(self._report.ask("details", path=path))

    def names(self) -> KeyedAnswer:
        """The names of all raw events, and the smallest exported operation that holds each."""
        places = Places(self.events, self._paths, self._place[self.events])
        return request_key("names", path=self.step), names_of(self._report.view, self.step, places)


def _short(details: Details) -> Details:
    """Details with few rows in each table."""
    instances, selects = details.instances, details.selects
    return replace(
        details,
        instances=instances and replace(instances, rows=instances.rows[:_FEW_ROWS]),
        device_work=replace(details.device_work, rows=details.device_work.rows[:_FEW_ROWS]),
        selects=Selects(
            selects.modules[:_FEW_ROWS], selects.kernels[:_FEW_ROWS], selects.lines[:_FEW_ROWS]
        ),
    )
