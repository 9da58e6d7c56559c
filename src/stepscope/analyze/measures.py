"""Measuring what was found: times a step, shares, idle time."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.search import Rows, Search
from stepscope.annotate.idle import windows
from stepscope.annotate.quiet import python_time
from stepscope.summary import Summary, summarise
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES

LONG_CALL_NS = 1_000_000
LONGEST_GAP_NS = 50_000_000
LONGEST_LAUNCH_NS = 100_000


class Measures(Search):
    """What the events of the steps take."""

    @cached_property
    def summary(self) -> Summary:
        """The facts of `stepscope report`."""
        return summarise(self._recorded, self.rank)

    @property
    def step_ms(self) -> float:
        """Mean length of a step until the next begins, of the last until its device work ends."""
        return float(sum(end - start for _, start, end in self._windows)) / 1e6 / self.count

    @property
    def has_device(self) -> bool:
        """Whether a device works in the steps."""
        return bool(self.summary.devices)

    @cached_property
    def busiest_device(self) -> Any:
        """The device that computes longest (`summary.Device`), None where there is none."""
        return max(self.summary.devices, key=lambda one: one.computing_ms, default=None)

    def ms(self, rows: Rows) -> float:
        """The time of some events, ms a step, as a union on each track and summed over them."""
        start, duration = self.events["start_ns"][rows], self.events["duration_ns"][rows]
        track = self.events["track"][rows]
        spans = (Intervals(start[track == one], (start + duration)[track == one])
                 for one in np.unique(track))  # fmt: skip
        return sum(span.total() for span in spans) / 1e6 / self.count

    def calls(self, rows: Rows) -> float:
        """How many calls, or pieces of device work, these are a step."""
        number = self.unfolded.calls[rows].sum() if self.unfolded else len(rows)
        return float(number) / self.count

    def each_ns(self, rows: Rows) -> NDArray[np.float64]:
        """How long each of some events lasts; of one that stands for several calls, their mean."""
        duration = self.events["duration_ns"][rows].astype(np.float64)
        return duration / np.maximum(self.unfolded.calls[rows], 1) if self.unfolded else duration

    def share(self, rows: Rows, own: bool = False) -> float:
        """The part of a step that some events take, the median over the steps.

        Args:
            rows: events that do not overlap each other, or are counted each.
            own: count the time that an event keeps for itself, without those inside it.
        """
        column = self.events["self_ns" if own else "duration_ns"][rows]
        place = np.searchsorted(self.steps["step"], self.events["step"][rows])
        spent = np.bincount(place, column, len(self.steps))
        length = np.array([end - start for _, start, end in self._windows])
        return float(np.median(spent / np.maximum(length, 1)))

    def spent_ns(self, rows: Rows) -> NDArray[np.float64]:
        """The time that each of some CPU events causes: on the device, or its own without one.

        Device work counts for the innermost of them around its launch. Recomputation in backward
        and communication, which hooks start inside other work, do not count.
        """
        aside = (self.events["recompute"] == 1) | self.events.text("category").mask("communication")
        if self.has_device:
            work = self.launched[(self._device_work & ~aside)[self.launched]]
            return self._summed(rows, work)
        inner = self.outermost(np.flatnonzero(aside & ~np.isin(np.arange(len(aside)), rows)))
        duration = self.events["duration_ns"][rows].astype(np.float64)
        return duration - self._summed(rows, inner)

    def waits_ms(self, rows: Rows) -> float:
        """How long the training loop runs no operator while some events run, ms a step."""
        return self.spans(rows).minus(self._operator_spans()).total() / 1e6 / self.count

    def spans(self, rows: Rows) -> Intervals:
        """When any of some events runs."""
        start = self.events["start_ns"][rows]
        return Intervals(start, start + self.events["duration_ns"][rows])

    def quiet(self) -> Intervals:
        """When the training loop runs Python and nothing else: `annotate.quiet.python_time`."""
        return python_time(self.trace, self.rank, self.steps)

    def idle_ms(self, *causes: str) -> float:
        """Time in which the busiest device idles for some causes, ms a step."""
        device = self.busiest_device
        return sum(device.idle_ms[cause] for cause in causes) if device else 0.0

    def idle_during_ms(self, rows: Rows) -> float:
        """How long the busiest device idles while some events run, ms a step."""
        idle = self.trace["idle"]
        mine = (idle["rank"] == self.rank) & (idle["device"] == self.busiest_device.device)
        busy = self.spans(rows).minus(Intervals(idle["start_ns"][mine], idle["end_ns"][mine]))
        return (self.spans(rows).total() - busy.total()) / 1e6 / self.count

    def launch_gaps(self) -> Intervals:
        """When the busiest device idles because the CPU takes its time to launch work.

        Not meant are gaps of 50 ms and more, those of 100 µs and more after a launch, which wait
        for another stream, and calls of the runtime of 1 ms and more: no launch takes as long, they
        allocate or load kernels.
        """
        idle = self.trace["idle"]
        length = idle["end_ns"] - idle["start_ns"]
        most = np.zeros(len(IDLE_CAUSES), np.int64)
        most[IDLE_CAUSES.index("host")] = LONGEST_GAP_NS
        most[IDLE_CAUSES.index("launch")] = LONGEST_LAUNCH_NS
        mine = (length < most[idle["cause"]]) & (idle["rank"] == self.rank)
        mine &= idle["device"] == self.busiest_device.device
        mine &= np.isin(idle["step"], self.steps["step"])
        gaps = Intervals(idle["start_ns"][mine], idle["end_ns"][mine])
        calls = self.find(category="runtime")
        long = self.events["duration_ns"][calls] >= LONG_CALL_NS
        return gaps.minus(self.spans(calls[long]))

    def device_facts(self) -> dict[str, Any]:
        """What the trace tells of the device that works: name, computeMajor, numSms, …."""
        used = set(self.trace["tracks"]["device"][self.events["track"][self.find(on_device=True)]])
        known = self.trace.metadata.devices
        mine = (dict(one) for number, one in enumerate(known) if one.get("id", number) in used)
        return next(mine, {})

    @cached_property
    def _windows(self) -> list[tuple[int, int, int]]:
        return windows(self.trace.with_table(self.steps))

    def _summed(self, rows: Rows, parts: Rows) -> NDArray[np.float64]:
        """The time of `parts` inside, or launched in, each of `rows`, ns."""
        around = self.led_from(rows)[parts]
        inside = around >= 0
        duration = self.events["duration_ns"][parts[inside]]
        time = np.bincount(around[inside], duration, len(self.events)).astype(np.float64)
        result: NDArray[np.float64] = time[rows]
        return result

    def _operator_spans(self) -> Intervals:
        """When any thread computes."""
        rows = self.find(category=("cpu_op", "runtime"))
        return self.spans(rows[~self.is_range(rows)])
