"""Measure events: time per step, shares of the step, idle time, and one-off costs."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepscope.analyze.event_search import EventSearch
from stepscope.analyze.finding import WARNING
from stepscope.base.arrays import Floats, Mask, Rows, Times
from stepscope.facts.annotate.device.idle import LONGEST_LAUNCH_NS, exposed_communication
from stepscope.facts.annotate.device.idle import python_time as intervals_of_python
from stepscope.facts.annotate.device.one_off_costs import one_off_delays
from stepscope.facts.annotate.steps.step_table import step_lengths, windows_of
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.kernels import WorkBounds
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals, grouped_union
from stepscope.trace.recorded_steps import usual_step_ns
from stepscope.trace.schema import IDLE_CAUSES
from stepscope.trace.sets import distinct

_MOST_LEFT_OUT = 1_000  # of a step's length: less than that is left of none
_MIN_STEPS = 3  # with fewer nothing shows which step is typical
LEAST_SHARE = WARNING  # of the step: most rules are silent about what takes less
LONG_CALL_NS = 1_000_000  # such runtime calls allocate or load kernels: launches take some 10 us
LONGEST_GAP_NS = 50_000_000  # in longer gaps the CPU launches nothing, rather than slowly


class Roofline(NamedTuple):
    """What events compute, and their least times by the peak rates of the device, ns; nan if unknown."""

    flops: Floats  # of products; 0 for other work
    bytes: Floats
    least_ns: Floats
    computing_ns: Floats
    moving_ns: Floats


class Measures:
    """Measure the events that a search found."""

    def __init__(self, search: EventSearch) -> None:
        self._search = search
        self._events, self._steps = search.events, search.steps

    @cached_property
    def summary(self) -> Summary:
        """The numbers that `stepscope report` prints."""
        return summarize(self._search.recorded, self._search.rank)

    @cached_property
    def step_ms(self) -> float:
        """Mean step length as recorded, ms."""
        return self.per_step(step_lengths(self._search.recorded_steps).sum())

    @cached_property
    def steady_ms(self) -> float:
        """Mean step length without first-use costs and one-off delays, ms."""
        length = step_lengths(self._steps)
        once, device = self.spans(self.first_use), self.busiest_device
        # As the report states it; on a CPU all of it.
        once_ms = device.one_off_ms if device else self.per_step(once.total())
        # A delay of a thread that nothing waits for makes its step no longer than others.
        longer = length - np.sort(length)[:1]
        delays = self.spans(self.noise).minus(once).within(*windows_of(self._steps))
        left = self.per_step(length.sum()) - once_ms
        usual = min(left, usual_step_ns(self._search.trace.metadata.capture) / 1e6)
        left -= self.per_step(np.minimum(delays, longer).sum())
        return max(left, usual, self.per_step(length.sum()) / _MOST_LEFT_OUT)

    @property
    def run_ms(self) -> float:
        """The run per training step, without its start-up, ms; 0 if it was not measured."""
        run = self.summary.run
        return run.work_ms_per_step if run else 0.0

    @cached_property
    def _once(self) -> Intervals:
        """When first use, or a delay in one step, takes its time."""
        return self.spans(np.union1d(self.first_use, self.noise))

    def per_step(self, total_ns: float) -> float:
        """A time of all steps, ns, as ms per step."""
        return float(total_ns) / 1e6 / self._search.step_count

    def part_of_step(self, rows: Rows, ms: float = np.inf) -> float:
        """The share of a step, 0 to 1, in which any of `rows` runs, or of the `ms` that they take
        on all threads and devices, if that may be less: both without one-off costs and delays. Of what
        runs on the CPU and on devices, which may be a step behind, the longer side counts."""
        on_device = self._search.device_work[rows]
        sides = (
            self._steady_part_ms(self.spans(rows[on_device == side]), not side) for side in (True, False)
        )
        return min(max(sides), ms, self.steady_ms) / (self.steady_ms or 1.0)

    def share_of_stage(self, stage: str) -> float:
        """The share of a stage in the step, both without one-off costs and delays."""
        return min(self._steady_part_ms(self.stage_spans(stage), True) / (self.steady_ms or 1.0), 1.0)

    def all_but_ms(self, stays: Rows) -> float:
        """The step without events that stay, loading of data, and long gaps in which only Python runs, ms."""
        gaps = self.stalls(LEAST_SHARE * 1e6 * self.steady_ms).union(self.stage_spans("data_loading"))
        return self.steady_ms - self._steady_part_ms(self.spans(stays).union(gaps))

    def _steady_part_ms(self, spans: Intervals, of_cpu: bool = False) -> float:
        steps = self._steps
        bounds = steps.spans() if of_cpu and self.has_device else windows_of(steps)  # a device may be behind
        return self.per_step(Intervals(*bounds).intersect(spans).minus(self._once).total())

    @cached_property
    def first_use(self) -> Rows:
        """Events that later steps do not pay, such as the first use of a kernel (events.id)."""
        return self._search.one_off.calls[self._search.in_steps[self._search.one_off.calls]]

    @cached_property
    def noise(self) -> Rows:
        """Operators that a busy machine delayed in one step (events.id)."""
        return one_off_delays(self._search.trace, self._search.rank)

    def is_small(self, ms: float) -> bool:
        """Whether a time per step is less than most rules report."""
        return ms < LEAST_SHARE * self.steady_ms

    def longer_side_ms(self, rows: Rows) -> float:
        """Time of ranges and device work, ms per step: on the CPU, or on devices with the work in them."""
        on_device = self._search.device_work[rows]
        work = np.union1d(rows[on_device], self._search.find(inside=rows, on_device=True))
        return max(self.ms(rows[~on_device]), self.ms(work))

    def cost_ms(self, rows: Rows) -> float:
        """All that `rows` cost, ms per step: on the CPU, on the device, and to launch."""
        outer = self._search.outermost(rows)
        work = np.flatnonzero(self._search.within(rows) & self._search.device_work)
        calls = self._search.caller[work]
        calls = np.setdiff1d(np.unique(calls[calls >= 0]), self.first_use)
        return self.ms(np.union1d(outer, np.union1d(work, calls)))

    def steadiness(self, rows: Rows) -> float:
        """How much of the time of `rows` recurs, 0 to 1.

        The step with the most of it (of ten or more, one in ten) counts as much as the one with the
        next most, so that what a busy machine does to one step does not count. Nor do one-off costs.
        """
        once = self.spans(self.first_use).within(*self._events.spans(rows))
        length = self._events["duration_ns"][rows] - np.where(self._search.device_work[rows], 0, once)
        spent = self._by_step(rows, length)
        return _without_most(spent) / float(spent.mean()) if spent.sum() else 1.0

    def recurring_ms(self, gaps: Intervals) -> float:
        """Time in the gaps per step without one-off costs, ms; the step with the most counts as the next."""
        gaps = gaps.minus(self.spans(self.first_use))  # what was delayed in one step counts as in the next
        if len(self._steps) < _MIN_STEPS:
            return self.per_step(gaps.total())
        return _without_most(gaps.within(*windows_of(self._steps)).astype(np.float64)) / 1e6

    @property
    def has_device(self) -> bool:
        return bool(self.summary.devices)

    @cached_property
    def busiest_device(self) -> Any:
        """The device that computes longest (`summary.Device`), or None."""
        return max(self.summary.devices, key=lambda one: one.computing_ms, default=None)

    def ms(self, rows: Rows) -> float:
        """Time of `rows`, ms per step: their union on each track, summed over tracks."""
        tracks = len(self._search.trace["tracks"])
        spent = grouped_union(self._events["track"][rows], *self._events.spans(rows), tracks)
        return self.per_step(spent.sum())

    def elapsed_ms(self, rows: Rows) -> float:
        """Time in which any of `rows` runs, ms per step."""
        return self.per_step(self.spans(rows).total())

    def calls(self, rows: Rows) -> float:
        """Number of calls, or of pieces of device work, per step."""
        number = self._search.context_trace.calls[rows].sum() if self._search.context_trace else len(rows)
        return float(number) / self._search.step_count

    def each_ns(self, rows: Rows) -> Floats:
        """Duration of each event, ns; the mean where an event stands for several calls."""
        duration = self._events["duration_ns"][rows].astype(np.float64)
        tree = self._search.context_trace
        return duration / np.maximum(tree.calls[rows], 1) if tree else duration

    def share(self, rows: Rows, own: bool = False) -> float:
        """Share of a step that `rows` take, on any thread or device, the median over the steps."""
        spent = self._by_step(rows, self._events["self_ns" if own else "duration_ns"][rows])
        return float(np.median(np.minimum(spent / np.maximum(step_lengths(self._steps), 1), 1.0)))

    def caused_ns(self, rows: Rows) -> Floats:
        """The time that each CPU event causes, ns: on the device, or on the CPU if there is none.

        Device work counts for the innermost of `rows` around its launch. Recomputation in backward
        and communication, which hooks start inside other work, do not count.
        """
        aside = (self._events["recompute"] == 1) | self._events.text("category").mask("communication")
        if self.has_device:
            work = self._search.launched[(self._search.device_work & ~aside)[self._search.launched]]
            return self._summed(rows, work)
        inner = self._search.outermost(np.flatnonzero(aside & ~np.isin(np.arange(len(aside)), rows)))
        return self._events["duration_ns"][rows].astype(np.float64) - self._summed(rows, inner)

    def wait_ms(self) -> float:
        """Time in which the CPU only waits for communication, ms per step."""
        search = self._search
        return self.per_step(exposed_communication(search.trace, search.rank, search.steps).total())

    def spans(self, rows: Rows) -> Intervals:
        return Intervals(*self._events.spans(rows))

    def stage_spans(self, stage: str) -> Intervals:
        runs = self._search.trace["stages"]
        chosen = runs.text("stage").mask(stage) & (runs["rank"] == self._search.rank)
        return Intervals(runs["start_ns"][chosen], runs["end_ns"][chosen])

    def python_time(self) -> Intervals:
        return intervals_of_python(self._search.trace, self._search.rank, self._search.steps)

    def idle_ms(self, *causes: str) -> float:
        """Idle time of the busiest device with one of these causes, ms per step."""
        device = self.busiest_device
        return sum(device.idle_ms.get(cause, 0.0) for cause in causes) if device else 0.0

    def idle_share(self, *causes: str) -> float:
        """Share of the step in which the busiest device idles with one of these causes.

        The verdict states the same number, which leaves out one-off costs.
        """
        device = self.busiest_device
        return self.idle_ms(*causes) / (device.steady_ms or self.step_ms) if device else 0.0

    def share_of_window(self, gaps: Intervals) -> float:
        """Share of the step that gaps in the work of the busiest device take, as `idle_share`."""
        return self.per_step(gaps.total()) / (self.busiest_device.steady_ms or self.step_ms)

    def launch_gaps(self) -> Intervals:
        """When the busiest device idles because the CPU launches too slowly.

        Excluded are gaps of 50 ms or more, gaps of 100 µs or more after a launch (these wait for
        another stream), and runtime calls of 1 ms or more (these allocate or load kernels).
        """
        idle = self._search.trace["idle"]
        length = idle["end_ns"] - idle["start_ns"]
        most = np.zeros(len(IDLE_CAUSES), np.int64)
        most[IDLE_CAUSES.index("host")] = LONGEST_GAP_NS
        most[IDLE_CAUSES.index("launch")] = LONGEST_LAUNCH_NS
        gaps = self._idle_gaps(length < most[idle["cause"]])
        calls = self._search.find(category="runtime")
        return gaps.minus(self.spans(calls[self._events["duration_ns"][calls] >= LONG_CALL_NS]))

    def roofline(self, rows: Rows) -> Roofline:
        """Of some events; nan for those that are no work."""
        known, columns = self._roofline
        place = np.searchsorted(known, rows)
        place = np.where(np.append(known, -1)[place] == rows, place, len(known))
        return Roofline(*(np.append(column, np.nan)[place] for column in columns))

    def idle(self, *causes: str) -> Intervals:
        """When the busiest device idles in the steps, for some causes or for any."""
        return self._idle_gaps(self._search.trace["idle"].text("cause").mask(*(causes or IDLE_CAUSES)))

    def _idle_gaps(self, chosen: Mask) -> Intervals:
        """Those of the chosen rows of `idle` that are of the steps and of the busiest device."""
        idle = self._search.trace["idle"]
        chosen = chosen & (idle["rank"] == self._search.rank) & np.isin(idle["step"], self._steps["step"])
        if self.busiest_device is not None:
            chosen &= idle["device"] == self.busiest_device.device
        return Intervals(idle["start_ns"][chosen], idle["end_ns"][chosen])

    def stalls(self, least_ns: float = LONG_CALL_NS) -> Intervals:
        """When Python keeps the training loop for 1 ms or more, and nothing else runs."""
        gaps = self.python_time()
        long = gaps.ends - gaps.starts >= least_ns
        return Intervals(gaps.starts[long], gaps.ends[long])

    @cached_property
    def _roofline(self) -> tuple[Rows, Roofline]:
        selected = SelectedSteps(self._search.recorded, self._search.rank, None)
        bounds = WorkBounds(selected, self.summary.devices)
        computing, moving = bounds.computing_ns, bounds.moving_ns
        least = np.fmax(computing, moving)
        return selected.work, Roofline(bounds.flops, bounds.pieces.bytes, least, computing, moving)

    def device_facts(self) -> dict[str, Any]:
        """Properties of the device in use: name, computeMajor, numSms, …."""
        tracks = distinct(self._events["track"][self._search.find(on_device=True)])
        used = distinct(self._search.trace["tracks"]["device"][tracks]).tolist()
        return next((dict(one) for one in map(self._search.trace.metadata.device, used) if one), {})

    def _by_step(self, rows: Rows, spent: Times) -> Floats:
        """What some events of the steps have spent in each."""
        place = np.searchsorted(self._steps["step"], self._events["step"][rows])
        known = place < len(self._steps)
        return np.bincount(place[known], spent[known], len(self._steps)).astype(np.float64)

    def _summed(self, rows: Rows, parts: Rows) -> Floats:
        """The time of `parts` inside, or launched in, each of `rows`, ns."""
        around = self._search.enclosing(rows)[parts]
        inside = around >= 0
        duration = self._events["duration_ns"][parts[inside]]
        time = np.bincount(around[inside], duration, len(self._events)).astype(np.float64)
        return time[rows]


def _without_most(spent: Floats) -> float:
    """The mean with the greatest value of three or more lowered to the next; of ten or more, one in ten."""
    most = np.sort(spent)[-1 - max(len(spent) // 10, 1)] if len(spent) >= _MIN_STEPS else np.inf
    return float(np.minimum(spent, most).mean())
