"""What rules look at: the recorded steps of one rank, with what search and measuring need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Finding, Gain, Place
from stepscope.analyze.places import Places
from stepscope.analyze.unfolded import Unfolded, unfold
from stepscope.annotate.idle import windows
from stepscope.annotate.launches import launch_of
from stepscope.annotate.steps import main_track
from stepscope.annotate.tracks import device_work
from stepscope.contexts import ContextTree, build_contexts
from stepscope.errors import StepscopeError, TraceError
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.summary import Summary, summarise
from stepscope.trace.arguments import parse
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Prediction, parse_request
from stepscope.whatif.prediction import Baseline

WARMING = 3
Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


class Subject:
    """The steps of one rank of a trace.

    Args:
        trace: an annotated trace; of several ranks, for rules that compare them. Of one that holds
            a calling-context tree and no events the tree is looked at: what follows what, and what
            the device waits for, is not known then.
        rank: whose steps; by default those of the rank whose devices work longest.

    Raises:
        TraceError: if there is no such rank, or no step.
    """

    def __init__(self, trace: Trace, rank: int | None = None) -> None:
        self.contexts = build_contexts(trace) if len(trace["contexts"]) else None
        self.unfolded = _unfolded(trace, self.contexts)
        if self.unfolded:
            trace = self.unfolded.trace
        self._asked = rank
        self.rank = _busiest(trace) if rank is None else rank
        self.trace = trace = trace.with_table(_settled(trace["steps"]))
        self.summary: Summary = summarise(trace, self.rank)
        self.events = trace.events
        self.steps = trace["steps"].take(trace["steps"]["rank"] == self.rank)
        self.count = self.unfolded.steps if self.unfolded else len(self.steps)
        self._places = Places(trace)
        self._predictions: dict[tuple[str, ...], Prediction | None] = {}

    # -- search

    def find(
        self,
        name: str = "",
        *,
        category: str | Sequence[str] = (),
        stage: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        on_device: bool | None = None,
        inside: Rows | None = None,
    ) -> Rows:
        """Events of the steps that meet every condition given.

        Args:
            name: a regular expression, searched in the event's name.
            category, stage, kind: one, or several, of the trace's closed lists.
            on_device: only device work, or only what runs on the CPU.
            inside: only what runs in one of these events, or was launched there.

        Returns:
            events.id, int64, shape (n,), in order of start.

        Example:
            >>> subject.find(r"^aten::item$", stage=("forward", "loss"))  # doctest: +SKIP
        """
        chosen = self._mine.copy()
        if name:
            pattern = re.compile(name)
            chosen &= self.events.text("name").where(lambda text: bool(pattern.search(text)))
        for column, wanted in (("category", category), ("stage", stage), ("kind", kind)):
            if wanted:
                values = (wanted,) if isinstance(wanted, str) else wanted
                chosen &= self.events.text(column).mask(*values)
        if on_device is not None:
            chosen &= self._device_work if on_device else ~self._device_work
        if inside is not None:
            chosen &= self.led_to(inside)
        return np.flatnonzero(chosen)

    def led_to(self, rows: Rows) -> Mask:
        """Events inside some events, themselves included, and the device work launched there."""
        return self.led_from(rows) >= 0

    def led_from(self, rows: Rows) -> NDArray[np.int32]:
        """For each event, the innermost of some events that it is in or was launched in, or -1."""
        around = self._around(rows)
        around[self.launched] = around[self.caller[self.launched]]
        return around

    def outermost(self, rows: Rows) -> Rows:
        """Those of some events that lie in no other of them."""
        parent = self.events["parent"][rows]
        outer = np.where(parent >= 0, self._around(rows)[parent], -1)
        return rows[outer < 0]

    def is_range(self, rows: Rows) -> Mask:
        """Which of some events are ranges around Python code, not operators."""
        ranges = self.events.text("category").mask("annotation", "python")
        ranges |= self.events.text("name").where(lambda name: name.startswith("stepscope."))
        found: Mask = ranges[rows]
        return found

    def innermost_operators(self, rows: Rows) -> Rows:
        """Those of some operators that call no other operator."""
        operator = self.events.text("category").mask("cpu_op")
        calls = np.zeros(len(self.events), np.bool_)
        calls[np.maximum(self.events["parent"][operator], 0)] = True
        return rows[~calls[rows]]

    def operator_of(self, rows: Rows) -> NDArray[np.int32]:
        """The innermost operator around each event or around its launch, -1 where there is none."""
        host = np.where(self.caller[rows] >= 0, self.caller[rows], rows)
        result: NDArray[np.int32] = self._operator[host]
        return result

    def name(self, row: int) -> str:
        """The name of an event."""
        return self.events.text("name")[row] or ""

    def arguments(self, rows: Rows) -> list[dict[str, Any]]:
        """What the recorder attached to each of some events (shapes, grid, …)."""
        sources = self.events["source"][rows]
        found: dict[int, dict[str, Any]] = {}
        wanted = np.unique(sources)
        for block in self.trace.arguments.blocks:
            index = np.flatnonzero(np.isin(block.sources, wanted))
            text = block.text() if len(index) else b""
            for place in index.tolist():
                start = int(block.ends[place - 1]) if place else 0
                found[int(block.sources[place])] = parse(text[start : int(block.ends[place])])
        return [found.get(source, {}) for source in sources.tolist()]

    def shapes(self, rows: Rows) -> list[list[list[int]]]:
        """The shapes of the inputs of each of some operators, empty where not recorded."""
        return [
            [shape if _is_shape(shape) else [] for shape in arguments.get("Input Dims") or []]
            for arguments in self.arguments(rows)
        ]

    # -- measure

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

    def _summed(self, rows: Rows, parts: Rows) -> NDArray[np.float64]:
        """The time of `parts` inside, or launched in, each of `rows`, ns."""
        around = self.led_from(rows)[parts]
        inside = around >= 0
        duration = self.events["duration_ns"][parts[inside]]
        time = np.bincount(around[inside], duration, len(self.events)).astype(np.float64)
        result: NDArray[np.float64] = time[rows]
        return result

    def waits_ms(self, rows: Rows) -> float:
        """How long the training loop runs no operator while some events run, ms a step."""
        busy = self._operator_spans()
        start = self.events["start_ns"][rows]
        spans = Intervals(start, start + self.events["duration_ns"][rows])
        return spans.minus(busy).total() / 1e6 / self.count

    def quiet(self) -> Intervals:
        """When no thread runs an operator, loads data or communicates, within the steps."""
        steps = Intervals(self.steps["start_ns"], self.steps["end_ns"])
        aside = np.union1d(self.find(stage="data_loading"), self.find(category="communication"))
        start = self.events["start_ns"][aside]
        busy = Intervals(start, start + self.events["duration_ns"][aside])
        return steps.minus(self._operator_spans().union(busy))

    def idle_ms(self, *causes: str) -> float:
        """Time in which the busiest device idles for some causes, ms a step."""
        device = self.busiest_device
        return sum(device.idle_ms[cause] for cause in causes) if device else 0.0

    def device_facts(self) -> dict[str, Any]:
        """What the trace tells of the device that works: name, computeMajor, numSms, …."""
        used = set(self.trace["tracks"]["device"][self.events["track"][self.find(on_device=True)]])
        known = self.trace.metadata.devices
        mine = (dict(one) for number, one in enumerate(known) if one.get("id", number) in used)
        return next(mine, {})

    # -- gain and finding

    def whatif(self, *changes: str) -> Gain | None:
        """What changes of `stepscope whatif` would give back, None where they do not apply.

        Args:
            changes: as `amp` or `scale:select=name=aten::item,factor=0`, made in this order.
        """
        if changes not in self._predictions:
            self._predictions[changes] = self._predict(changes)
        prediction = self._predictions[changes]
        if prediction is None:
            return None
        low, high = (prediction.replayed_step_ms - one for one in reversed(prediction.range))
        ms = prediction.replayed_step_ms - prediction.predicted_step_ms
        return Gain(max(ms, 0.0), "", changes, (max(low, 0.0), max(high, 0.0)))

    def gain(
        self,
        rows: Rows,
        *changes: str,
        note: str = "",
        part: float = 1.0,
    ) -> Gain:
        """What changes would give back by the what-if engine; where they do not apply, a bound.

        Args:
            rows: the events whose time is the bound.
            changes: as for `whatif`.
            note: what the change supposes, said beside it.
            part: of the events' time is the bound.
        """
        found = self.whatif(*changes) if changes else None
        if found is None:
            return self.bound(
                part * self.ms(self.outermost(rows)), note or "at most the time of these events"
            )
        return replace(found, note=note)

    def bound(self, ms: float, why: str) -> Gain:
        """A stated bound, where no change of the what-if engine tells."""
        return Gain(float(min(ms, self.step_ms)), why)

    def finding(self, what: str, advice: str, rows: Rows, gain: Gain) -> Finding:
        """A finding with its evidence.

        Args:
            what: one sentence on what is slow.
            advice: one sentence on what to do.
            rows: the events that show it, at least one.
            gain: what it could give back.
        """
        if not len(rows):
            raise ValueError("expected at least one event as evidence, found none")
        if self.unfolded:
            places = self._places.of(np.asarray(rows), self.count, self.unfolded.calls)
            node = self.unfolded.node
            places = tuple(
                replace(one, events=(), contexts=tuple(node[list(one.events)].tolist()))
                for one in places
            )
        else:
            places = self._places.of(np.asarray(rows), self.count)
        return Finding("", what, advice, places, gain, self.step_ms, self.rank)

    def finding_in_tree(self, what: str, advice: str, nodes: Rows, gain: Gain) -> Finding:
        """A finding whose evidence are nodes of the calling-context tree, at least one."""
        if self.contexts is None or not len(nodes):
            raise ValueError("expected nodes of a calling-context tree as evidence, found none")
        places = tuple(self._place_in_tree(self.contexts, int(node)) for node in nodes)
        return Finding("", what, advice, places, gain, self.step_ms, self.rank)

    def _place_in_tree(self, tree: ContextTree, node: int) -> Place:
        path = list(tree.nodes.take(tree.path(node)).rows())
        lines = [one for one in path if one["kind"] == "python" and one["line"]]
        modules = [one["name"] for one in path if one["kind"] == "module"]
        times = [tree.own(name) for name in ("call_ns", "device_ns", "stalls") if tree.has(name)]
        own = next((one for one in times if one.count[node]), None)
        return Place(
            name=tree.label(node),
            stage=path[-1]["stage"] or "",
            module=modules[-1] if modules else "",
            file=lines[-1]["file"] if lines else "",
            line=lines[-1]["line"] if lines else None,
            function=lines[-1]["name"] if lines else "",
            count=float(own.count[node]) / self.count if own else 0.0,
            ms=float(own.sum[node]) / 1e6 / self.count if own else 0.0,
            contexts=(node,),
        )

    def place(self, row: int) -> str:
        """Where an event comes from, as ` in layer1 · net.py:12`, empty where nothing is known."""
        where = self._places.of(np.array([row]), 1)[0].where
        return f" in {where}" if where else ""

    # -- facts made once

    @cached_property
    def graph(self) -> Graph:
        """The dependency graph of the steps: of all ranks, unless one was asked for."""
        if self._asked is not None or len(self.trace.metadata.ranks) == 1:
            return build_graph(self.trace, self.rank)
        return build_ranks(self.trace)

    @cached_property
    def _baseline(self) -> Baseline:
        return Baseline(self.graph)

    @cached_property
    def caller(self) -> NDArray[np.int32]:
        """The CPU call that launched each event, -1 where there is none."""
        return launch_of(self.trace)

    @cached_property
    def launched(self) -> Rows:
        """Device work whose launch is known."""
        return np.flatnonzero(self.caller >= 0)

    @cached_property
    def loop_track(self) -> int:
        """The CPU track of the training loop."""
        return main_track(self.trace)

    @cached_property
    def _windows(self) -> list[tuple[int, int, int]]:
        return windows(self.trace.with_table(self.steps))

    @cached_property
    def _device_work(self) -> Mask:
        return device_work(self.trace)

    @cached_property
    def _mine(self) -> Mask:
        rank = self.trace["tracks"]["rank"][self.events["track"]]
        mine: Mask = (rank == self.rank) & np.isin(self.events["step"], self.steps["step"])
        return mine

    @cached_property
    def _operator(self) -> NDArray[np.int32]:
        operator = self.events.text("category").mask("cpu_op")
        operator &= ~self.events.text("name").where(lambda name: name.startswith("stepscope."))
        return inherit(self.events["parent"], np.where(operator, self.events["id"], -1))

    def _operator_spans(self) -> Intervals:
        """When any thread computes."""
        rows = self.find(category=("cpu_op", "runtime"))
        rows = rows[~self.is_range(rows)]
        start = self.events["start_ns"][rows]
        return Intervals(start, start + self.events["duration_ns"][rows])

    def _around(self, rows: Rows) -> NDArray[np.int32]:
        own = np.full(len(self.events), -1, np.int32)
        own[rows] = rows
        return inherit(self.events["parent"], own)

    def _predict(self, changes: tuple[str, ...]) -> Prediction | None:
        if self.unfolded:
            return None  # a simulation needs to know when things ran
        try:
            requests = [parse_request(text, CHANGES) for text in changes]
            return self._baseline.predict(requests)[0]
        except StepscopeError:
            return None


def _unfolded(trace: Trace, tree: ContextTree | None) -> Unfolded | None:
    """The tree as a trace, of a trace that has nothing else."""
    return unfold(tree, trace.metadata) if tree is not None and not len(trace.events) else None


def glob(name: str) -> str:
    """A glob that a what-if change takes for exactly this name: what it cannot hold becomes `?`."""
    return re.sub(r"[,+*?\[\]]", "?", name)


def _busiest(trace: Trace) -> int:
    """The rank whose devices work longest, of equal ones the first."""
    steps = trace["steps"]
    if not len(steps):
        raise TraceError(
            f"{trace.metadata.source}: expected at least one recorded step, found none"
        )
    ranks = np.unique(steps["rank"])
    busy = [int(steps["device_busy_ns"][steps["rank"] == rank].sum()) for rank in ranks]
    return int(ranks[int(np.argmax(busy))])


def _settled(steps: Table) -> Table:
    """The steps without a rank's first where that takes over 3 times their median: it warms up."""
    length = steps["end_ns"] - steps["start_ns"]
    keep = np.ones(len(steps), np.bool_)
    for rank in np.unique(steps["rank"]):
        mine = np.flatnonzero(steps["rank"] == rank)
        if len(mine) > 2 and length[mine[0]] > WARMING * np.median(length[mine]):
            keep[mine[0]] = False
    return steps.take(keep)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) for size in value)
