"""The columns read, with the questions that every table asks of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stepscope.ingest.columns import Columns
from stepscope.ingest.tally import Tally
from stepscope.ingest.times import INVALID
from stepscope.trace.table import Text

LONGEST_NS = 2**53  # 104 days: more is a recorder's mistake, and beyond what a float tells apart
Rows = NDArray[np.intp]


class Recorded:
    """Columns of the events read, in file order.

    Attributes:
        phases: (phase, category) as recorded, by code.
        phase: code of each event, shape (events,).
        time_ns: absolute, ns, shape (events,).
        track: code of each event's (pid, tid), shape (events,).
        name: of each event.
        usable: whether the event has a time that can be told, shape (events,).
    """

    def __init__(self, columns: Columns, tally: Tally) -> None:
        self.columns, self.tally = columns, tally
        self.phases = list(columns.phases)
        self.phase = columns.column("phase")
        self.time_ns = columns.column("time_ns")
        self.track = columns.column("track")
        self.name = Text(columns.column("name"), list(columns.names))
        self.usable = self._usable()

    def _usable(self) -> NDArray[np.bool_]:
        """Events with a time that can be told; the others are counted and set aside."""
        told: NDArray[np.bool_] = self.time_ns != INVALID
        self.tally("bad_timestamp", "an event has no timestamp that can be told; set aside",
                   int((~told).sum()))  # fmt: skip
        if not told.any():
            return told
        middle = float(np.median(self.time_ns[told]))
        near = np.abs(self.time_ns.astype(np.float64) - middle) <= LONGEST_NS
        self.tally("far_timestamp", "an event lies over 104 days from the others; set aside",
                   int((told & ~near).sum()))  # fmt: skip
        usable: NDArray[np.bool_] = told & near
        return usable

    def rows(self, test: Callable[[str, str], bool]) -> Rows:
        """Usable events whose phase and recorded category pass `test`, called once per pair."""
        wanted = np.array([test(*phase) for phase in self.phases] or [False])
        return np.flatnonzero(wanted[self.phase] & self.usable)

    def of_phase(self, *letters: str) -> Rows:
        """Usable events of one of some phases."""
        return self.rows(lambda phase, category: phase in letters)

    def letter(self, row: int) -> str:
        """Phase of one event."""
        return self.phases[int(self.phase[row])][0]

    def letters(self, rows: Rows) -> Text:
        """Phases of some events."""
        return Text.of([phase for phase, _ in self.phases] or [""]).take(self.phase[rows])

    def categories(self, rows: Rows) -> Text:
        """Categories of some events as recorded."""
        return Text.of([category for _, category in self.phases] or [""]).take(self.phase[rows])
