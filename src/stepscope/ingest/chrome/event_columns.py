"""The columns of the recorded events, and selections of their rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.arrays import Mask, Rows
from stepscope.ingest.chrome.record_columns import RecordColumns
from stepscope.ingest.chrome.timestamps import INVALID
from stepscope.ingest.warning_log import WarningLog
from stepscope.trace.sets import members
from stepscope.trace.table import Text

LONGEST_NS = 2**53  # 104 days: more is a recorder's mistake, and beyond a float's precision


class EventColumns:
    """The columns of the recorded events, in file order.

    Attributes:
        phases: (phase, category) as recorded, by code.
        phase: code of each event, shape (events,).
        time_ns: absolute, ns, shape (events,).
        track: code of each event's (pid, tid), shape (events,).
        name: of each event.
        usable: whether the event has a plausible timestamp, shape (events,).
    """

    def __init__(self, columns: RecordColumns, log: WarningLog) -> None:
        self.columns, self.log = columns, log
        self.phases = list(columns.phases)
        self.phase = columns.column("phase")
        self.time_ns = columns.column("time_ns")
        self.track = columns.column("track")
        self.name = Text(columns.column("name"), list(columns.names))
        self.usable = self._usable()

    def _usable(self) -> Mask:
        """Events with a plausible timestamp; the others are counted and skipped."""
        valid: Mask = self.time_ns != INVALID
        self.log("bad_timestamp", "skipped an event without a valid timestamp",
                 int((~valid).sum()))  # fmt: skip
        if not valid.any():
            return valid
        times = self.time_ns if valid.all() else self.time_ns[valid]
        if int(times.max()) - int(times.min()) < LONGEST_NS // 2:
            return valid
        middle = float(np.median(times))
        near = np.abs(self.time_ns.astype(np.float64) - middle) <= LONGEST_NS
        self.log("far_timestamp", "skipped an event over 104 days away from the others",
                 int((valid & ~near).sum()))  # fmt: skip
        usable: Mask = valid & near
        return usable

    def rows(self, test: Callable[[str, str], bool]) -> Rows:
        """Usable events whose phase and recorded category pass `test`, called once per pair."""
        wanted = np.array([test(*phase) for phase in self.phases], np.bool_)
        if not wanted.any():
            return np.zeros(0, np.intp)
        return np.flatnonzero(members(self.phase, wanted) & self.usable)

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
