"""The answer about two traces compared: what became slower or faster, and what is only noise."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepscope.annotate.steps.step_table import ranks_with_steps, require_steps
from stepscope.diff import Row, RunComparison, Side, compare
from stepscope.diff.step_samples import MeasuredRun
from stepscope.errors import ServeError
from stepscope.serve.distinct_names import distinct_short_names
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView
from stepscope.trace.trace import Trace
from stepscope.typed_data import convert

Verdict = Literal["slower", "faster", "unclear", "one_step", "same", "new", "gone"]


class ComparedRun(msgspec.Struct):
    """One of the two traces.

    Attributes:
        rank: whose steps are compared.
        ranks: that have steps.
        steps: how many are compared.
        inferred: whether nothing marks its steps.
        device: names of its devices, empty if unknown.
        framework: with its version, empty if unknown.
        world_size: ranks of the job.
    """

    rank: int
    ranks: list[int]
    steps: int
    inferred: bool
    device: str
    framework: str
    world_size: str


class ComparedTime(msgspec.Struct):
    """The time of a part on one side.

    Attributes:
        median_ms: over the steps.
        least_ms: of the shortest step.
        most_ms: of the longest step.
        count: calls per step, null where none are counted.
    """

    median_ms: float
    least_ms: float
    most_ms: float
    count: float | None


class ComparedRow(msgspec.Struct):
    """A part of the step before and after.

    Attributes:
        name: of the stage, module, operator, kernel or use of time; of the step `step`.
        short: the same, a kernel's name shortened.
        side: `CPU` or `device` of a stage, else empty.
        module: id in the trace on screen, -1 for anything else.
        before: null if only the trace on screen has it.
        after: null if only the other trace has it.
        ratio: after over before, null without a time before.
        verdict: `unclear` is a change within the noise from step to step; `one_step` says that a
            side has one step only, so that nothing is known of its noise.
    """

    name: str
    short: str
    side: str
    module: int
    before: ComparedTime | None
    after: ComparedTime | None
    change_ms: float
    ratio: float | None
    verdict: Verdict


class ComparedParts(msgspec.Struct):
    """The parts of the step, the largest change first."""

    time_use: list[ComparedRow]
    stages: list[ComparedRow]
    modules: list[ComparedRow]
    operators: list[ComparedRow]
    kernels: list[ComparedRow]


class Difference(msgspec.Struct):
    """Two traces compared; times are medians over the steps, per step.

    Attributes:
        before: the other trace.
        after: the trace on screen.
        on_device: whether modules and operators are compared by device work, else by CPU time.
        step: whole steps.
        beyond: steps of the trace on screen that are slower (or faster, as `step` changed) than all
            of the other.
        cause: the use of time that changed most in the direction of the step, beyond noise.
    """

    before: ComparedRun
    after: ComparedRun
    on_device: bool
    step: ComparedRow
    beyond: int
    cause: ComparedRow | None
    parts: ComparedParts


def diff(view: TraceView, query: Query) -> Difference:
    """The steps of the trace compared with those of another trace or rank, part by part.

    Query:
        against: id of another open trace; by default the trace itself, of which another rank is
            named.
        rank: rank of the trace; by default the first.
        against_rank: rank of the other; by default `rank` if the other has it, else its first.
    """
    against, rank = query.text("against"), query.number("rank")
    other = query.number("against_rank")
    if not against and other is None:
        raise ServeError("expected another open trace as against, or a rank as against_rank")
    before = view.other(against) if against else view.trace
    rank = ranks_of(view.trace)[0] if rank is None else rank
    if other is None and rank in ranks_of(before):
        other = rank
    key = ("diff", against, rank, other)
    return view.cached(
        key, lambda: _answer(view, compare(before, view.trace, rank=other, to_rank=rank), before)
    )


def ranks_of(trace: Trace) -> list[int]:
    """The ranks of a trace that have steps.

    Raises:
        TraceError: if none has.
    """
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
        beyond=found.beyond,
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
    name, *side = row.key
    return ComparedRow(
        name=name,
        short=short or name,
        side=side[0] if side else "",
        module=module,
        before=_time(row.before),
        after=_time(row.after),
        change_ms=row.change_ms,
        ratio=row.ratio,
        verdict=convert(row.verdict, Verdict),
    )


def _time(side: Side | None) -> ComparedTime | None:
    if side is None:
        return None
    return ComparedTime(side.median_ms, side.least_ms, side.most_ms, side.count)
