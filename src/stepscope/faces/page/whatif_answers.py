"""Answers about what-ifs: which changes there are, and how some of them would affect the step."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepscope.errors import ChangeError, GraphError
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.models.whatif.prediction import Prediction
from stepscope.models.whatif.whatif_pane import ListedChange, Pane, SimulatedTimelines

_DEFAULT_RECTANGLES, _MAX_RECTANGLES = 2000, 20_000


class Changes(msgspec.Struct):
    """Every change."""

    changes: list[ListedChange]


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
        found = pane.answer(asked, most)
    except (ChangeError, GraphError) as refusal:
        return Refused(None, None, str(refusal))
    return WhatIf(found.answer, found.timeline)


def _pane(view: TraceView, query: Query) -> Pane:
    scope = query.number("rank"), query.number("step")
    return view.cached(("what-ifs", *scope), lambda: Pane(view.trace, *scope))
