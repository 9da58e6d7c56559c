"""Answers about what-ifs: which changes there are, and how some of them would affect the step."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepscope.errors import ChangeError, GraphError
from stepscope.serve.requests import Query
from stepscope.serve.trace_view import TraceView
from stepscope.typed_data import convert
from stepscope.whatif.whatif_pane import Pane

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


class TimeBreakdown(msgspec.Struct):
    """Which side is busy; mean a step."""

    cpu_only_ms: float
    device_only_ms: float
    parallel_ms: float
    idle_ms: float


class BreakdownSides(msgspec.Struct):
    """Without and with the changes."""

    before: TimeBreakdown
    after: TimeBreakdown


class CriticalPath(msgspec.Struct):
    """Time on the critical path, ms a step."""

    stages: dict[str, float]
    modules: dict[str, float]


class CriticalPathSides(msgspec.Struct):
    """Without and with the changes."""

    before: CriticalPath
    after: CriticalPath


class Answer(msgspec.Struct):
    """A prediction, as `stepscope whatif --json` has it; times are means a step.

    Attributes:
        replayed_step_ms: simulated without a change.
        replay_error: replayed over measured, less 1.
        predicted_step_ms: simulated with the changes.
        speedup: replayed over predicted; null if nothing is left of the step.
        range: predicted step for the largest and smallest gain, ms.
        changes: as asked for.
        assumptions: what has to hold.
    """

    measured_step_ms: float
    replayed_step_ms: float
    replay_error: float
    predicted_step_ms: float
    speedup: float | None
    range: tuple[float, float]
    changes: list[str]
    assumptions: list[str]
    breakdown: BreakdownSides
    critical_path: CriticalPathSides


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

    answer: Answer
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
    pane = _pane(view, query)
    return view.cached(
        ("changes", *_scope(query)), lambda: Changes(convert(pane.changes, list[Change]))
    )


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
        return convert(pane.answer(asked, most), WhatIf)
    except (ChangeError, GraphError) as refusal:
        return Refused(None, None, str(refusal))


def _pane(view: TraceView, query: Query) -> Pane:
    """The graph of a rank and a step, built once."""
    scope = _scope(query)
    return view.cached(("what-ifs", *scope), lambda: Pane(view.trace, *scope))


def _scope(query: Query) -> tuple[int | None, int | None]:
    return query.number("rank"), query.number("step")
