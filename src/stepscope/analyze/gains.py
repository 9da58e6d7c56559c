"""Estimate what a fix saves: by simulation, else by a stated upper bound."""

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.event_search import EventSearch
from stepscope.analyze.finding import Gain
from stepscope.analyze.measures import Measures
from stepscope.base.arrays import Floats, Mask, Rows, Times
from stepscope.base.parallel import in_background
from stepscope.errors import StepscopeError, TraceError
from stepscope.graph import Graph, build_graph, build_ranks, scale, simulate
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.anchor import mean_ms
from stepscope.models.whatif.prediction import Baseline

UNUSUAL = 1.5  # a step that is longer than this many medians is not typical
MIN_STEPS = 3  # with fewer nothing shows which step is typical
_MOST_TRIED = 4  # names of events in what is tried
_ALTERNATIVE = 0.5  # of what a fix saves
# That recording a small operator cost more or less than was removed: loops over elements saved
# 0.17 to 0.2 µs more per event than their corrected times.
_UNSURE_NS = 250  # ns per event, above the largest of them: benchmarks/advice.py
# By rule, fixes saved 0.7 to 1 of the work in benchmarks/advice.py, an average of weights in one call 0.6.
MOSTLY_SAVED = 0.5  # of the work that a fix replaces, what it saves at least
_ALIKE = 0.1  # gains that differ by less, as a share, are of the same fix


class Gains:
    """Estimate what a fix of the analyzed steps saves."""

    def __init__(self, search: EventSearch, measures: Measures) -> None:
        self._search = search
        self._measures = measures
        self._known: dict[tuple[str, ...], Gain | None] = {}
        self._edits: dict[int, Callable[[Graph], Graph]] = {}
        self._numbers = itertools.count()  # rules run in threads

    def prepare(self) -> None:
        """Start to build the graph, which takes long, while rules do what needs none."""
        if not self._search.context_trace:
            _ = self._built

    def whatif(self, *changes: str) -> Gain | None:
        """Simulate changes of `stepscope whatif`, such as `amp` or
        `scale:select=name=aten::item,factor=0`, in order; None if they do not apply."""
        if changes not in self._known:
            self._known[changes] = self._predicted(changes)
        return self._known[changes]

    def gain(self, rows: Rows, *changes: str, note: str = "", at_most: str = "", part: float = 1.0) -> Gain:
        """Simulate changes; if they do not apply, return an upper bound.

        The gain never exceeds the cost of the events.

        Args:
            rows: the events that cost the time.
            changes: as for `whatif`.
            note: the assumption, shown with the gain.
            at_most: the same where no fix saves all of it, so that the gain is an upper bound.
            part: the share of the events' time that is the upper bound.
        """
        found = self.whatif(*changes) if changes else None
        if found is None:
            return self._part_of(rows, part, note or at_most)
        found = found.as_bound(at_most) if at_most else replace(found, note=note)
        return found.at_most(self._measures.cost_ms(rows))

    def without_names(self, rows: Rows, at_most: str = "") -> Gain:
        """Simulate that no events of the names of `rows` take time; see `gain`."""
        changes = (f"scale:select=name={glob(name)},factor=0" for name in self._search.names(rows))
        return self.gain(rows, *changes, at_most=at_most)

    def scaled(self, rows: Rows, factor: float | Floats = 0.0, note: str = "") -> Gain:
        """Simulate the steps with some events scaled, with all that runs inside them.

        Args:
            rows: events.id.
            factor: of their durations; one, or one for each of `rows`.
            note: the assumption, shown with the gain.
        """
        part = float(np.mean(1 - np.asarray(factor)))
        if self._search.context_trace:
            return self._part_of(rows, part, note)
        edit = self._scaling(rows, factor)
        try:
            graph = self.graph
        except TraceError:  # such as a step without length
            return self._part_of(rows, part, note)
        ms = self._saved_ms(edit(graph))
        gain = Gain(max(ms, 0.0), note, edit=self._number(edit))
        return gain.at_most(self._measures.cost_ms(rows))

    def reproduced(self, gain: Gain, *changes: str) -> Gain:
        """A gain, simulated or a bound, with changes (as for `whatif`) that save as much, to be tried.

        On several ranks the changes alone count: a program is fixed for all of them. On one rank
        the gain stays without them where they save another time: they may also select work outside
        the analyzed events.
        """
        found = self.whatif(*changes) if gain.ms > 0 else None
        if found is None:
            return gain
        if gain.edit is not None and not self._one_rank:
            return replace(found, note=gain.note).at_most(self._measures.steady_ms)
        return gain if abs(found.ms - gain.ms) > _ALIKE * gain.ms else replace(gain, changes=changes)

    def without(self, rows: Rows, ms: float, why: str, most_ms: float = 0.0) -> Gain:
        """A bound, or up to `most_ms`, for events that need not be there, to be tried if it saves as much."""
        besides = max(most_ms - ms, 0.0) / (ms or 1.0)
        bound, on_device = self.bound(ms, why, besides), self._search.device_work[rows]
        keys = np.where(on_device, "name", "operator").tolist()
        names = map(self._search.name, rows.tolist())
        parts = sorted({f"{key}={glob(name)}" for key, name in zip(keys, names, strict=True)})
        if len(parts) > _MOST_TRIED:
            return bound
        return self.reproduced(bound, *(f"scale:select={part},factor=0" for part in parts))

    def _part_of(self, rows: Rows, part: float, note: str) -> Gain:
        cost = self._measures.ms(self._search.outermost(rows))
        return self.bound(part * cost, note or "at most the time of these events")

    def bound(self, ms: float, why: str, besides: float = 0.0, sure: float = 0.0) -> Gain:
        """An upper bound, for fixes that no change simulates; up to `besides` more, and at least `sure`
        where the fix removes all of it, as shares of it."""
        most = float(self._measures.steady_ms)
        likely = min(float(ms), most)
        within = (sure * likely, min((1 + besides) * float(ms), most)) if besides or sure else None
        return Gain(likely, why, range_ms=within)

    def unsure(self, gain: Gain, inside: Mask) -> Gain:
        """The gain of shortening some events, shape (events,), up to what is not known of the cost
        of recording them."""
        if not self._search.trace.metadata.recording_cost.get("removed_ns"):
            return gain
        more = _UNSURE_NS * int((inside & self._search.in_steps).sum()) / 1e6 / self._search.step_count
        low, high = gain.stated_ms
        return replace(gain, range_ms=(low, min(high + more, self._measures.steady_ms)))

    def of_run(self, ms: float, why: str, least_ms: float = 0.0, most_ms: float = 0.0) -> Gain:
        """What a fix saves of the whole run, ms per training step: `least_ms` to `most_ms`, by default
        up to `ms`."""
        whole = self._measures.run_ms
        most_ms = min(max(most_ms, ms), whole)
        return Gain(min(ms, whole), why, range_ms=(min(least_ms, whole), most_ms))

    def combined(self, gains: Sequence[Gain]) -> Gain | None:
        """Simulate several fixes together; None if fewer than two can be simulated.

        A fix that shortens mostly what an earlier one shortens is an alternative to it, and left out.
        All save no more than each states, which may be less than is simulated: a loader's workers
        share cores, and others may have had the core.
        """
        simulated = [(gain, self._edits[gain.edit]) for gain in gains if gain.edit is not None]
        if self._search.context_trace or len(simulated) < 2:
            return None
        graph, count, stated_ms = self.graph, 0, 0.0
        shortened = np.zeros(len(graph.trace.events) + 1, np.bool_)
        for gain, edit in simulated:
            saved = self._saved_of_events(edit)
            if saved[shortened].sum() > _ALTERNATIVE * saved.sum():
                continue
            with contextlib.suppress(StepscopeError):  # an earlier fix may leave nothing to change
                graph, count, stated_ms = edit(graph), count + 1, stated_ms + gain.ms
                shortened |= saved > 0
        if count < 2:
            return None
        return Gain(min(max(self._saved_ms(graph), 0.0), stated_ms), "simulated together")

    def _saved_of_events(self, edit: Callable[[Graph], Graph]) -> Times:
        """How much shorter each event gets by a fix, ns, shape (events + 1,); the last is no event's."""
        try:
            after = edit(self.graph)
        except StepscopeError:
            after = self.graph
        size = len(self.graph.trace.events) + 1
        before, left = (
            np.bincount(one.tasks["event"] % size, one.tasks["duration_ns"] + one.tasks["gap_ns"], size)
            for one in (self.graph, after)
        )
        saved: Times = np.maximum(before - left, 0).astype(np.int64)
        saved[-1] = 0
        return saved

    @property
    def graph(self) -> Graph:
        """The dependency graph of the steps, without one-off costs and noise.

        It covers all ranks, unless the caller chose one.
        """
        return self._baseline.graph

    @cached_property
    def _built(self) -> Callable[[], Graph]:
        """The graph as it was recorded, built in the background."""
        search = self._search
        build = partial(build_graph, rank=search.rank) if self._one_rank else build_ranks
        return in_background(lambda: build(search.recorded), len(search.recorded.events))

    @property
    def job_step_ms(self) -> float | None:
        """The step of a job, of which simulated gains are a part; None if they are of one rank's."""
        return None if self._one_rank else mean_ms(self._baseline.simulation)

    @property
    def _one_rank(self) -> bool:
        """Whether the graph is of one rank, the only one or the one that the caller chose."""
        search = self._search
        return search.requested_rank is not None or len(search.trace.metadata.ranks) == 1

    @cached_property
    def _baseline(self) -> Baseline:
        return Baseline(self._built(), self._measures.noise)

    def _saved_ms(self, graph: Graph) -> float:
        return self._typical_ms(simulate(graph.check()).step_ns)

    def _typical_ms(self, after_ns: Times) -> float:
        return float((self._baseline.simulation.step_ns - after_ns)[self._typical].mean()) / 1e6

    @cached_property
    def _typical(self) -> Mask:
        """The steps but those that are far longer than the others.

        The last step may be: it lasts until all device work has ended. So may one that waits for
        data: workers deliver several batches at once, and then none for a while.
        """
        length = self._baseline.simulation.step_ns
        typical = np.ones(len(length), np.bool_)
        if len(length) >= MIN_STEPS:
            other = length - self._loading_ns(len(length))
            typical = other - np.median(other) <= (UNUSUAL - 1) * np.median(length)
        typical[-1:] = True
        return typical

    def _loading_ns(self, steps: int) -> Times:
        """How long the training loop loads or waits for data in each of the steps of the graph."""
        search, number = self._search, np.array(self._baseline.graph.window.steps)  # none that warms up
        rows = search.find(stage="data_loading", on_device=False)
        rows = rows[np.isin(search.events["step"][rows], number)]
        step = np.searchsorted(number, search.events["step"][rows])
        return np.bincount(step, search.events["self_ns"][rows], steps).astype(np.int64)

    def _scaling(self, rows: Rows, factor: float | Floats) -> Callable[[Graph], Graph]:
        around = self._search.enclosing(rows)
        by_event = np.ones(len(self._search.events) + 1)
        each = np.ones(len(self._search.events))
        each[rows] = factor
        by_event[:-1] = np.where(around >= 0, each[around], 1.0)

        def edit(graph: Graph) -> Graph:
            factors = by_event[graph.tasks["event"]]
            chosen = (factors != 1.0) & (graph.tasks["mark"] == 0)
            return scale(graph, chosen, factors[chosen])

        return edit

    def _number(self, edit: Callable[[Graph], Graph]) -> int:
        number = next(self._numbers)
        self._edits[number] = edit
        return number

    def _predicted(self, changes: tuple[str, ...]) -> Gain | None:
        if self._search.context_trace:
            return None  # a tree has no timestamps to simulate
        try:
            requests = [parse_request(text, CHANGES) for text in changes]
            after, within = self._baseline.predict_time(requests)
        except StepscopeError:
            return None
        before_ms = mean_ms(self._baseline.simulation)
        low, high = (before_ms - after_ms for after_ms in reversed(within))
        ms = before_ms - mean_ms(after)

        def edit(graph: Graph) -> Graph:
            for request in requests:
                graph = request.apply(graph)
            return graph

        bounds = (max(low, 0.0), max(high, 0.0))
        gain = Gain(max(ms, 0.0), "", changes, bounds, self._number(edit))
        typical_ms = max(self._typical_ms(after.step_ns), 0.0)
        return gain.scaled(typical_ms / gain.ms) if typical_ms < gain.ms else gain


def glob(name: str) -> str:
    """A glob that matches this name in a what-if change; special characters become `?`."""
    return re.sub(r"[,+*?\[\]]", "?", name)
