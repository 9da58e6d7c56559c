"""The answer that lays two timelines above each other: predicted, of another run, of another rank."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from stepscope.errors import GraphError, ServeError
from stepscope.faces.page.diff_answers import other_of, ranks_of
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import pane_of, requested
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.facts.timeline.pairs import PairThread, RecordedStep, Rectangles, pair_steps
from stepscope.trace.trace import Trace

_MOST, _MAX_MOST = 4000, 20_000  # rectangles; chosen: more than a wide screen has pixels


class Pair(msgspec.Struct):
    """A step on screen and another one, paired by structure; both begin at time 0."""

    # the one on screen: `before` where the other is predicted, else `after`
    upper: Literal["before", "after"]
    step: int  # number of the step on screen
    other: int  # number of the other step
    start_ns: int  # when the step on screen begins, since the trace's start
    threads: list[PairThread]  # rows of both
    before: Rectangles
    after: Rectangles


def pair(view: TraceView, query: Query) -> Pair:
    """A step above the same step as predicted, or above one of another trace or rank.

    Query:
        changes: one a line, as on the command line, if the other step is the prediction.
        against: id of another open trace; by default the trace itself.
        against_rank: rank of the other; by default `rank` if the other has it, else its first.
        rank: of the step on screen, by default the first.
        step: by default the one nearest to the median length.
        most: rectangles in each timeline, by default 4,000, at most 20,000.
    """
    rank, step = query.number("rank"), query.number("step")
    shown = _step(view.trace, ranks_of(view.trace)[0] if rank is None else rank, step)
    most = min(query.number("most") or _MOST, _MAX_MOST)
    if changes := requested(query):
        return _predicted(view, shown, changes, most)
    before, other_rank = other_of(view, query, shown.rank)
    number = shown.number if before is view.trace else None  # ranks of a job do the same step together
    other = _step(before, other_rank, number)
    key = ("pair", query.text("against"), other_rank, shown.rank, shown.number, most)
    sides = view.cached(key, lambda: pair_steps(other, shown, most))
    return Pair("after", shown.number, other.number, shown.begin_ns, *sides)


def _predicted(view: TraceView, shown: RecordedStep, changes: list[str], most: int) -> Pair:
    """A step as replayed, above its prediction; all ranks are simulated together."""
    try:
        sides = pane_of(view, None, shown.number).timelines(changes, shown.rank, most)
    except GraphError as refusal:
        raise ServeError(str(refusal)) from refusal
    return Pair("before", shown.number, shown.number, shown.begin_ns, *sides)


def _step(trace: Trace, rank: int, step: int | None) -> RecordedStep:
    steps = SelectedSteps(trace, rank, step).steps
    length = step_lengths(steps)
    at = int(np.abs(length - np.median(length)).argmin())
    end = int(max(steps["end_ns"][at], steps["device_end_ns"][at]))
    return RecordedStep(trace, rank, int(steps["step"][at]), int(steps["start_ns"][at]), end)
