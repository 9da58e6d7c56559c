"""Answers about what-ifs: which changes there are, and how some of them would affect the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import msgspec

from stepscope.errors import ChangeError, GraphError, StepscopeError
from stepscope.graph import Graph, Simulation, build_graph, build_ranks
from stepscope.serve.requests import Query
from stepscope.serve.trace_view import TraceView
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Request, parse_request
from stepscope.whatif import Change as ChangeSpec
from stepscope.whatif.prediction import Baseline, Prediction
from stepscope.whatif.simulated_timeline import rectangles

_DEFAULT_RECTANGLES, _MAX_RECTANGLES = 2000, 20_000


class Parameter(msgspec.Struct):
    """A parameter of a change.

    Attributes:
        type: float, int, str or bool.
        default: null if a value must be given.
    """

    name: str
    type: str
    default: bool | int | float | str | None
    meaning: str


class Change(msgspec.Struct):
    """A change that `stepscope whatif` knows.

    Attributes:
        applies: whether it applies to this trace with its defaults.
        reason: why not, or which parameters it needs.
    """

    name: str
    summary: str
    parameters: list[Parameter]
    assumptions: list[str]
    applies: bool
    reason: str


class Changes(msgspec.Struct):
    """Every change."""

    changes: list[Change]


class Thread(msgspec.Struct):
    """A row of the simulated timelines."""

    name: str
    kind: str
    rank: int


class Rectangles(msgspec.Struct):
    """A simulated timeline: columns of one length, thread by thread in order of time.

    Attributes:
        length_us: of all steps together.
        thread: index into `threads`.
        name: of the longest task that the rectangle groups.
        stage: of this task, null outside all stages.
        kind: of this task.
        tasks: number of tasks that the rectangle groups.
    """

    length_us: float
    thread: list[int]
    start_us: list[float]
    duration_us: list[float]
    name: list[str]
    stage: list[str | None]
    kind: list[str | None]
    tasks: list[int]


class SimulatedTimelines(msgspec.Struct):
    """The steps simulated without and with the changes."""

    threads: list[Thread]
    before: Rectangles
    after: Rectangles


class WhatIf(msgspec.Struct):
    """The predicted effect of some changes.

    Attributes:
        reason: empty.
    """

    answer: Prediction
    timeline: SimulatedTimelines
    reason: Literal[""] = ""


class Refused(msgspec.Struct):
    """Changes that do not apply, or are written wrongly.

    Attributes:
        reason: why.
    """

    answer: None
    timeline: None
    reason: str


def changes(view: TraceView, query: Query) -> Changes:
    """Every change with its parameters, and whether it applies; the first request builds the graph.

    Query:
        rank: by default all ranks together.
        step: by default the longest run of consecutive steps.
    """
    return Changes(_pane(view, query).changes)


def whatif(view: TraceView, query: Query) -> WhatIf | Refused:
    """How changes would affect the step, with the simulated timelines without and with them.

    Query:
        changes: one a line, as on the command line (`bandwidth:factor=2`), in order of
            application; by default none, which shows the replay.
        rank: by default all ranks together.
        step: by default the longest run of consecutive steps.
        most: rectangles in each timeline, by default 2,000, at most 20,000.
    """
    asked = [text for text in query.text("changes").split("\n") if text]
    most = min(query.number("most") or _DEFAULT_RECTANGLES, _MAX_RECTANGLES)
    pane = _pane(view, query)
    try:
        return pane.answer(asked, most)
    except (ChangeError, GraphError) as refusal:
        return Refused(None, None, str(refusal))


def _pane(view: TraceView, query: Query) -> Pane:
    """The graph of a rank and a step, built once."""
    scope = query.number("rank"), query.number("step")
    return view.cached(("what-ifs", *scope), lambda: Pane(view.trace, *scope))


class Pane:
    """The what-ifs of one trace; the graph is built once.

    Args:
        trace: an annotated trace.
        rank: one rank alone; by default all ranks of the trace together.
        step: one step; by default the longest run of consecutive steps.

    Raises:
        TraceError: if there is no such step.

    Example:
        >>> pane = Pane(stepscope.open("run.stepscope"))  # doctest: +SKIP
        >>> pane.answer(["amp", "bandwidth:factor=2"]).answer.speedup  # doctest: +SKIP
    """

    def __init__(self, trace: Trace, rank: int | None = None, step: int | None = None) -> None:
        steps = None if step is None else (step, step)
        graph = build_ranks(trace, steps=steps) if rank is None else build_graph(trace, rank, steps)
        self._baseline, self._timelines = Baseline(graph), dict[int, Rectangles]()

    @property
    def graph(self) -> Graph:
        """The graph without a change."""
        return self._baseline.graph

    @cached_property
    def changes(self) -> list[Change]:
        """Every change, and whether it applies to this trace."""
        return [self._described(change) for change in CHANGES.values()]

    def answer(self, changes: Sequence[str], most: int = _DEFAULT_RECTANGLES) -> WhatIf:
        """The prediction, and the timelines before and after.

        Args:
            changes: as on the command line (`bandwidth:factor=2`), in the order of application.
            most: the maximum number of rectangles of a timeline.

        Raises:
            ChangeError: if there is no such change or one does not apply, with the reason.
        """
        requests = [parse_request(text, CHANGES) for text in changes]
        prediction, after = self._baseline.predict_all(requests)
        threads = after.graph.threads
        facts = (threads.text("name"), threads.text("kind"), threads["rank"].tolist())
        rows = [
            Thread(name or "", kind or "", rank) for name, kind, rank in zip(*facts, strict=True)
        ]
        return WhatIf(prediction, SimulatedTimelines(rows, self._before(most), _drawn(after, most)))

    def _before(self, most: int) -> Rectangles:
        if most not in self._timelines:
            self._timelines[most] = _drawn(self._baseline.simulation, most)
        return self._timelines[most]

    def _described(self, change: ChangeSpec) -> Change:
        applies, reason = self._applies(change)
        return Change(
            name=change.name,
            summary=change.summary,
            parameters=[Parameter(**vars(one)) for one in change.parameters.values()],
            assumptions=list(change.assumptions),
            applies=applies,
            reason=reason,
        )

    def _applies(self, change: ChangeSpec) -> tuple[bool, str]:
        missing = [one.name for one in change.parameters.values() if one.default is None]
        if missing:
            return True, f"needs {' and '.join(missing)}"
        try:
            Request(change).apply(self.graph)
        except StepscopeError as error:
            return False, str(error).removeprefix(f"{change.name}: ")
        return True, ""


def _drawn(simulation: Simulation, most: int) -> Rectangles:
    return Rectangles(simulation.last_end_ns / 1000, **rectangles(simulation, most))
