"""Answers about what-ifs: which changes there are, and how some of them would affect the step."""

import re
from typing import Literal

import msgspec

from stepscope.errors import BatchError, ChangeError, GraphError, ServeError
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.roofline.rates import find_capacity
from stepscope.models.whatif.best import Best, find_best
from stepscope.models.whatif.prediction import Prediction
from stepscope.models.whatif.whatif_pane import ListedChange, Pane


class Changes(msgspec.Struct):
    """Every change."""

    changes: list[ListedChange]


class WhatIf(msgspec.Struct):
    """The predicted effect of some changes."""

    answer: Prediction
    reason: Literal[""] = ""  # empty


class BestChanges(msgspec.Struct):
    """The combination of changes under which the step is fastest, or reaches a goal."""

    answer: Best
    reason: Literal[""] = ""  # empty


class Refused(msgspec.Struct):
    """Changes that do not apply, or are written wrongly."""

    answer: None
    reason: str  # why


def changes(view: TraceView, query: Query) -> Changes:
    """Every change with its parameters, and whether it applies; the first request builds the graph.

    Query:
        rank: by default all ranks together.
        step: by default the longest run of consecutive steps.
    """
    return Changes(pane_of(view, query.number("rank"), query.number("step")).changes)


def whatif(view: TraceView, query: Query) -> WhatIf | Refused:
    """How changes would affect the step.

    Query:
        changes: one a line, as on the command line (`bandwidth:factor=2`), in order of
            application; by default none, which shows the replay.
        rank: by default all ranks together.
        step: by default the longest run of consecutive steps.
    """
    try:
        return WhatIf(pane_of(view, query.number("rank"), query.number("step")).answer(requested(query)))
    except (ChangeError, GraphError) as refusal:
        return Refused(None, str(refusal))


def best(view: TraceView, query: Query) -> BestChanges | Refused:
    """The changes that together make the step fastest, or reach a goal with the fewest of them.

    Query:
        to: how long a step may take, ms; by default the fastest is searched.
        fits: the memory that it has to fit into, a size or a device (`24GB`, `A100`).
        rank: by default all ranks together.
        step: by default the longest run of consecutive steps.
    """
    goal, capacity = query.text("to"), query.text("fits")
    if goal and not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", goal):
        raise ServeError(f"expected `to` in milliseconds, found {goal[:40]!r}")
    rank, step = query.number("rank"), query.number("step")

    def search() -> BestChanges | Refused:
        try:
            graph, fits = pane_of(view, rank, step).graph, find_capacity(capacity) if capacity else None
            return BestChanges(find_best(graph, float(goal) if goal else None, fits))
        except (BatchError, ChangeError, GraphError) as refusal:
            return Refused(None, str(refusal))

    return view.cached(("best", goal, capacity, rank, step), search)


def requested(query: Query) -> list[str]:
    """The changes that a request names."""
    return [text for text in query.text("changes").split("\n") if text]


def pane_of(view: TraceView, rank: int | None, step: int | None) -> Pane:
    """The what-ifs of a rank and a step, or of all; their graph is built once."""
    return view.cached(("what-ifs", rank, step), lambda: Pane(view.trace, rank, step))
