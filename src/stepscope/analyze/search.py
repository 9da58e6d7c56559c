"""Finding events: the recorded steps of one rank, and which events of them are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.unfolded import Unfolded, unfold
from stepscope.annotate.launches import launch_of
from stepscope.annotate.steps import main_track, ranks_with_steps, require_steps
from stepscope.annotate.tracks import device_work
from stepscope.annotate.warm_up import settled
from stepscope.contexts import ContextTree, build_contexts
from stepscope.errors import TraceError
from stepscope.trace.arguments import parse
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


class Search:
    """The steps of one rank of a trace, or of a calling-context tree where it has nothing else."""

    def __init__(self, trace: Trace, rank: int | None = None) -> None:
        self.contexts = build_contexts(trace) if len(trace["contexts"]) else None
        self.unfolded = _unfolded(trace, self.contexts)
        if self.unfolded:
            trace = self.unfolded.trace
        self._asked = rank
        self.rank = _busiest(trace) if rank is None else rank
        self._recorded = trace
        self.trace = trace = trace.with_table(trace["steps"].take(settled(trace["steps"])))
        self.events = trace.events
        self.steps = trace["steps"].take(trace["steps"]["rank"] == self.rank)
        if not len(self.steps):
            known = list(ranks_with_steps(trace))
            raise TraceError(f"expected a rank of {known}, found {self.rank}")
        self.count = self.unfolded.steps if self.unfolded else len(self.steps)

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

    @property
    def leaves_out_a_step(self) -> bool:
        """Whether the rank's first step is left out, as it warms up."""
        return int((self._recorded["steps"]["rank"] == self.rank).sum()) > len(self.steps)

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

    def _around(self, rows: Rows) -> NDArray[np.int32]:
        own = np.full(len(self.events), -1, np.int32)
        own[rows] = rows
        return inherit(self.events["parent"], own)


def _unfolded(trace: Trace, tree: ContextTree | None) -> Unfolded | None:
    """The tree as a trace, of a trace that has nothing else."""
    return unfold(tree, trace.metadata) if tree is not None and not len(trace.events) else None


def _busiest(trace: Trace) -> int:
    """The rank whose devices work longest, of equal ones the first."""
    require_steps(trace)
    steps = trace["steps"]
    ranks = np.unique(steps["rank"])
    busy = [int(steps["device_busy_ns"][steps["rank"] == rank].sum()) for rank in ranks]
    return int(ranks[int(np.argmax(busy))])


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) for size in value)
