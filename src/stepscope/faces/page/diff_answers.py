"""Answers about two traces compared: what changed, and outlines of steps to lie side by side."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Rows, Times
from stepscope.base.typed_data import convert
from stepscope.errors import ServeError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate.steps.step_table import ranks_with_steps, require_steps, step_lengths
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.facts.timeline.operation_labels import distinct_short_names, short_name
from stepscope.models.diff import Row, RunComparison, Side, compare
from stepscope.models.diff.compare import Evidence
from stepscope.models.diff.step_samples import MeasuredRun
from stepscope.models.whatif.whatif_pane import Rectangles, SimulatedThread, merged_intervals
from stepscope.trace.schema import DEVICE_WORK, STAGES
from stepscope.trace.trace import Trace

Verdict = Literal["slower", "faster", "unclear", "one_step", "same", "new", "gone"]
_MOST = 4000  # rectangles of an outline; chosen: more than a wide screen has pixels


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
    before: Side | None
    after: Side | None
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
        evidence: how sure the change of the step is.
        apart: how many steps of one side lie beyond all of the other, and of how many.
        cause: the use of time that changed most in the direction of the step, beyond noise.
    """

    before: ComparedRun
    after: ComparedRun
    on_device: bool
    step: ComparedRow
    evidence: Evidence
    apart: list[int]
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
    verdict = convert(row.verdict, Verdict)
    short = short or name
    return filled(ComparedRow, row, name=name, short=short, side=side, module=module, verdict=verdict)


class StepOutline(msgspec.Struct):
    """A step in a few rows: its stages on the CPU, then the work and communication of each device.

    Times are since the step began on its CPU, so outlines of several traces lie on one axis.

    Attributes:
        step: its number.
        rows: what each thread is: 0 for the CPU, then an odd number for each device and the next
            one for its communication. The n-th devices of all traces have the same number.
        threads: the rows by name.
        timeline: what is drawn.
    """

    step: int
    rows: list[int]
    threads: list[SimulatedThread]
    timeline: Rectangles


class _OutlinePieces(NamedTuple):
    """What is drawn of a step, by row and time: stages on the CPU (event -1), and device work."""

    row: Ids
    start_ns: Times
    end_ns: Times
    stage: Ids
    event: Ids


def outline(view: TraceView, query: Query) -> StepOutline:
    """A step in a few rows, to be drawn on one axis with that of another trace or rank.

    Query:
        rank: by default the first.
        step: number of a step; by default the one nearest to the median length.
    """
    rank, step = query.number("rank"), query.number("step")
    rank = ranks_of(view.trace)[0] if rank is None else rank
    return view.cached(("outline", rank, step), lambda: _step_outline(view.trace, rank, step))


def _step_outline(trace: Trace, rank: int, step: int | None) -> StepOutline:
    steps = SelectedSteps(trace, rank, step).steps
    length = step_lengths(steps)
    at = int(np.abs(length - np.median(length)).argmin())
    number, begin = int(steps["step"][at]), int(steps["start_ns"][at])
    end = int(max(steps["end_ns"][at], steps["device_end_ns"][at]))
    pieces = _pieces(trace, rank, number, begin)
    rows = np.unique(pieces.row)
    drawn = _rectangles(trace, pieces, rows, (end - begin) / 1000)
    return StepOutline(number, rows.tolist(), [_thread(row) for row in rows.tolist()], drawn)


def _thread(row: int) -> SimulatedThread:
    if row == 0:
        return SimulatedThread("CPU", "cpu", 0)
    number, communicates = divmod(row - 1, 2)
    name = "device" if number == 0 else f"device {number + 1}"
    return SimulatedThread(f"{name}, communication" if communicates else name, "device", 0)


def _pieces(trace: Trace, rank: int, number: int, begin: int) -> _OutlinePieces:
    events, stages = trace.events, trace["stages"]
    runs = stages.take((stages["rank"] == rank) & (stages["step"] == number))
    work = _device_work(trace, rank, number)
    start = np.concatenate([runs["start_ns"], events["start_ns"][work]]) - begin
    duration = np.concatenate([runs["end_ns"] - runs["start_ns"], events["duration_ns"][work]])
    row = np.concatenate([np.zeros(len(runs), np.int64), _device_rows(trace, work)])
    stage = np.concatenate([runs.text("stage").codes, events["stage"][work]])
    event = np.concatenate([np.full(len(runs), -1), work])
    order = np.lexsort((start, row))
    return _OutlinePieces(
        *(part[order].astype(np.int64) for part in (row, start, start + duration, stage, event))
    )


def _device_work(trace: Trace, rank: int, step: int) -> Rows:
    events, tracks = trace.events, trace["tracks"]
    on_device = (tracks["rank"] == rank) & (tracks["device"] >= 0)
    mine = events.text("category").mask(*DEVICE_WORK) & (events["step"] == step)
    return np.flatnonzero(mine & on_device[events["track"]] & (events["duration_ns"] > 0))


def _device_rows(trace: Trace, work: Rows) -> Ids:
    events = trace.events
    _, number = np.unique(trace["tracks"]["device"][events["track"][work]], return_inverse=True)
    communicates = events.text("category").mask("communication")[work]
    return 1 + 2 * number.ravel().astype(np.int64) + communicates


def _rectangles(trace: Trace, pieces: _OutlinePieces, rows: Ids, length_us: float) -> Rectangles:
    """Work too short to see is merged with its neighbors of the same stage."""
    if not len(pieces.row):
        return Rectangles(length_us, [], [], [], [], [], [], [])
    label = pieces.row * (len(STAGES) + 1) + pieces.stage
    first, count, longest = merged_intervals(label, pieces.start_ns, pieces.end_ns, _MOST)
    end = np.maximum.reduceat(pieces.end_ns, first)
    return Rectangles(
        length_us=length_us,
        thread=np.searchsorted(rows, pieces.row[first]).tolist(),
        start_us=(pieces.start_ns[first] / 1000).tolist(),
        duration_us=((end - pieces.start_ns[first]) / 1000).tolist(),
        name=[
            _name(trace, *piece) for piece in zip(pieces.event[longest], pieces.stage[longest], strict=True)
        ],
        stage=[STAGES[code] if code >= 0 else None for code in pieces.stage[first].tolist()],
        kind=["stage" if event < 0 else "work" for event in pieces.event[first].tolist()],
        tasks=count.tolist(),
    )


def _name(trace: Trace, event: int, stage: int) -> str:
    if event < 0:
        return STAGES[stage].replace("_", " ")
    return short_name(str(trace.events.text("name")[int(event)]))
