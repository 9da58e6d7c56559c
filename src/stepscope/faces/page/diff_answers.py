"""Answers about two traces or ranks compared: what changed."""

from typing import Literal

import msgspec
import numpy as np

from stepscope.errors import GraphError, ServeError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import pane_of, requested
from stepscope.facts.annotate.steps.step_table import ranks_with_steps, require_steps, step_lengths
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.facts.timeline.operation_labels import distinct_short_names
from stepscope.facts.timeline.pairs import PairThread, RecordedStep, Rectangles, pair_steps
from stepscope.models.diff import Row, RunComparison, Side, compare
from stepscope.models.diff.compare import Evidence
from stepscope.models.diff.step_samples import MeasuredRun
from stepscope.trace.trace import Trace

BothAre = Literal["slowest", "typical", "fastest", "as_long", ""]
_PACES: dict[float, BothAre] = {0: "fastest", 0.5: "typical", 1: "slowest"}
Verdict = Literal["slower", "faster", "unclear", "one_step", "same", "new", "gone"]


class ComparedRun(msgspec.Struct):
    """One of the two traces."""

    rank: int  # whose steps are compared
    ranks: list[int]  # that have steps
    steps: int  # how many are compared
    inferred: bool  # whether nothing marks its steps
    device: str  # names of its devices, empty if unknown
    framework: str  # with its version, empty if unknown
    world_size: str  # ranks of the job


class ComparedRow(msgspec.Struct):
    """A part of the step before and after."""

    name: str  # of the stage, module, operator, kernel or use of time; of the step `step`
    short: str  # the same, a kernel's name shortened
    side: str  # `CPU` or `device` of a stage, else empty
    module: int  # id in the trace on screen, -1 for anything else
    before: Side | None  # null if only the trace on screen has it
    after: Side | None  # null if only the other trace has it
    change_ms: float
    ratio: float | None  # after over before, null without a time before
    # `unclear` is a change within the noise from step to step; `one_step` says that a side has one step
    # only, so that nothing is known of its noise
    verdict: Verdict


class ComparedParts(msgspec.Struct):
    """The parts of the step, the largest change first."""

    time_use: list[ComparedRow]
    stages: list[ComparedRow]
    modules: list[ComparedRow]
    operators: list[ComparedRow]
    kernels: list[ComparedRow]


class Difference(msgspec.Struct):
    """Two traces compared; times are medians over the steps, per step."""

    before: ComparedRun  # the other trace
    after: ComparedRun  # the trace on screen
    on_device: bool  # whether modules and operators are compared by device work, else by CPU time
    step: ComparedRow  # whole steps
    evidence: Evidence  # how sure the change of the step is
    apart: list[int]  # how many steps of one side lie beyond all of the other, and of how many
    cause: ComparedRow | None  # the use of time that changed most in the direction of the step, beyond noise
    parts: ComparedParts


def diff(view: TraceView, query: Query) -> Difference:
    """The steps of the trace compared with those of another trace or rank, part by part.

    Query:
        against: id of another open trace; by default the trace itself, of which another rank is
            named.
        rank: rank of the trace; by default the first.
        against_rank: rank of the other; by default `rank` if the other has it, else its first.
    """
    rank = query.number("rank")
    rank = ranks_of(view.trace)[0] if rank is None else rank
    before, other = other_of(view, query, rank)
    key = ("diff", query.text("against"), rank, other)
    return view.cached(
        key, lambda: _answer(view, compare(before, view.trace, rank=other, to_rank=rank), before)
    )


def other_of(view: TraceView, query: Query, rank: int) -> tuple[Trace, int]:
    """The trace and the rank that a rank is compared with: if none is named the same rank or the first."""
    against, other = query.text("against"), query.number("against_rank")
    if not against and other is None:
        raise ServeError("expected another open trace as against, or a rank as against_rank")
    before = view.other(against) if against else view.trace
    if other is None:
        other = rank if rank in (ranks := ranks_of(before)) else ranks[0]
    return before, other


def ranks_of(trace: Trace) -> list[int]:
    """The ranks of a trace that have steps; raises TraceError if none has."""
    require_steps(trace, "compare their flame graphs")
    return list(ranks_with_steps(trace))


def _answer(view: TraceView, found: RunComparison, before: Trace) -> Difference:
    modules = {path or "(model)": id for id, path in enumerate(view.trace["modules"].text("path"))}
    kernels = distinct_short_names([row.key[0] for row in found.parts["kernels"]])
    parts = found.parts
    return Difference(
        before=_run(found.before, before),
        after=_run(found.after, view.trace),
        on_device=found.before.on_device,
        step=_row(found.step),
        evidence=found.evidence,
        apart=list(found.apart),
        cause=_row(found.cause) if found.cause else None,
        parts=ComparedParts(
            time_use=[_row(row) for row in parts["time use"]],
            stages=[_row(row) for row in parts["stages"]],
            modules=[_row(row, module=modules.get(row.key[0], -1)) for row in parts["modules"]],
            operators=[_row(row) for row in parts["operators"]],
            kernels=[_row(row, short=kernels[row.key[0]]) for row in parts["kernels"]],
        ),
    )


def _run(run: MeasuredRun, trace: Trace) -> ComparedRun:
    return ComparedRun(
        rank=run.rank,
        ranks=ranks_of(trace),
        steps=len(run.steps),
        inferred=run.evidence in ("pattern", "whole_trace"),
        device=run.facts["device"],
        framework=run.facts["framework"],
        world_size=run.facts["ranks"],
    )


def _row(row: Row, *, short: str | None = None, module: int = -1) -> ComparedRow:
    name, side = (*row.key, "")[:2]
    short = short or name
    return filled(ComparedRow, row, name=name, short=short, side=side, module=module)


# -- the answer that lays two timelines above each other: predicted, of another run, of another rank

_MOST, _MAX_MOST = 4000, 20_000  # rectangles; chosen: more than a wide screen has pixels


class Pair(msgspec.Struct):
    """A step on screen and another one, paired by structure; both begin at time 0."""

    # the one on screen: `before` where the other is predicted, else `after`
    upper: Literal["before", "after"]
    step: int  # number of the step on screen
    other: int  # number of the other step
    # what both are by length among the steps of their runs: `as_long` for the same place in the order;
    # empty for the same step of two ranks or of a prediction, and where a run has one step
    both_are: BothAre
    start_ns: int  # when the step on screen begins, since the trace's start
    before_us: float  # what the step `before` takes; its work on devices may end later
    after_us: float  # what the step `after` takes
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
    shown = recorded_step(view.trace, ranks_of(view.trace)[0] if rank is None else rank, step)
    most = min(query.number("most") or _MOST, _MAX_MOST)
    if changes := requested(query):
        return _predicted(view, shown, changes, most)
    before, other_rank = other_of(view, query, shown.rank)
    number, both_are = _alike(shown, before, other_rank)
    other = recorded_step(before, other_rank, number)
    key = ("pair", query.text("against"), other_rank, shown.rank, shown.number, most)
    sides = view.cached(key, lambda: pair_steps(other, shown, most))
    return Pair(
        "after", shown.number, other.number, both_are, shown.begin_ns, other.took_us, shown.took_us, *sides
    )


def _predicted(view: TraceView, shown: RecordedStep, changes: list[str], most: int) -> Pair:
    """A step as replayed, above its prediction; all ranks are simulated together."""
    try:
        threads, before, after = pane_of(view, None, shown.number).timelines(changes, shown.rank, most)
    except GraphError as refusal:
        raise ServeError(str(refusal)) from refusal
    took_us = before.length_us, after.length_us
    return Pair("before", shown.number, shown.number, "", shown.begin_ns, *took_us, threads, before, after)


def _alike(shown: RecordedStep, before: Trace, rank: int) -> tuple[int | None, BothAre]:
    """The step of another run that is by length among its steps what the one on screen is among its own.

    Ranks of a job do the same step together. None if a run has one step, or the one on screen warms up.
    """
    if before is shown.trace:
        return shown.number, ""
    own, other = _by_length(shown.trace, shown.rank), _by_length(before, rank)
    last, place = len(own) - 1, own.index(shown.number) if shown.number in own else -1
    if not last or len(other) == 1 or place < 0:
        return None, ""
    share = 0.5 if place == last // 2 else place / last
    return other[round(share * (len(other) - 1))], _PACES.get(share, "as_long")


def _by_length(trace: Trace, rank: int) -> list[int]:
    steps = SelectedSteps(trace, rank, None).steps
    return steps["step"][np.argsort(step_lengths(steps), kind="stable")].tolist()


def recorded_step(trace: Trace, rank: int, step: int | None) -> RecordedStep:
    """A step of a rank, by default the one nearest to the median length."""
    steps = SelectedSteps(trace, rank, step).steps
    length = step_lengths(steps)
    at = int(np.abs(length - np.median(length)).argmin())
    end = int(max(steps["end_ns"][at], steps["device_end_ns"][at]))
    return RecordedStep(
        trace, rank, int(steps["step"][at]), int(steps["start_ns"][at]), end, float(length[at]) / 1000
    )
