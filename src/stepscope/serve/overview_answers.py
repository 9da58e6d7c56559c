"""The overview of a trace: the facts of a report, its steps, and what the page needs to begin."""

from __future__ import annotations

import msgspec

from stepscope.annotate.steps.step_windows import step_lengths
from stepscope.errors import TraceError
from stepscope.memory.memory_comparison import holds_memory
from stepscope.ranks.collective_table import has_collectives
from stepscope.serve.requests import Query
from stepscope.serve.trace_view import TraceView
from stepscope.summary.facts import Facts, Summary, Warning
from stepscope.summary.report_facts import summarize, warnings_of
from stepscope.timeline.operation import StepId


class StepRow(msgspec.Struct):
    """A recorded step.

    Attributes:
        id: its path in the timeline.
        runtime_ns: the step length, that of its window.
        device_busy_ns: busy time of the busiest device in its window.
        device_idle_ns: idle time of this device; both are 0 if none works.
    """

    id: str
    step: int
    rank: int
    start_ns: int
    end_ns: int
    runtime_ns: int
    device_busy_ns: int
    device_idle_ns: int


class Has(msgspec.Struct):
    """What the trace holds.

    Attributes:
        communication: collectives, or messages between ranks.
        memory: allocations.
    """

    device: bool
    communication: bool
    modules: bool
    memory: bool
    source: bool
    contexts: bool


class Overview(msgspec.Struct):
    """The facts of one rank, and what the page needs to begin.

    Attributes:
        start: path of the step to open first: the slowest of the rank whose steps take longest.
        ranks: all ranks; the facts are of `rank` alone.
        steps: of all ranks.
        facts: null if no step was recorded.
        why: why there are no facts, else empty.
        warnings: of this rank.
    """

    start: str
    rank: int
    ranks: list[int]
    steps: list[StepRow]
    has: Has
    facts: Facts | None
    why: str
    warnings: list[Warning]


def overview(view: TraceView, query: Query) -> Overview:
    """The facts of a report, and what the page needs to begin.

    A trace without a step has no facts; it may still have contexts.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, trace = view.rank_of(query), view.trace
    facts, why = _facts(view, query)
    return Overview(
        start=view.start,
        rank=rank,
        ranks=list(trace.metadata.ranks),
        steps=_steps(view),
        has=Has(
            device=facts is not None and facts.kernels_are == "kernels",
            communication=has_collectives(trace),
            modules=len(trace["modules"]) > 0,
            memory=holds_memory(trace),
            source=bool(view.sources.names),
            contexts=len(trace["contexts"]) > 0,
        ),
        facts=facts,
        why=why,
        warnings=warnings_of(trace, rank),
    )


def _facts(view: TraceView, query: Query) -> tuple[Facts | None, str]:
    try:
        summary = summary_of(view, query)
    except TraceError as error:
        if len(view.trace["steps"]):
            raise
        return None, str(error)
    return Facts(**{name: getattr(summary, name) for name in Facts.__struct_fields__}), ""


def summary_of(view: TraceView, query: Query) -> Summary:
    """The summary that a request asks for, computed once."""
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("summary", rank, step), lambda: summarize(view.trace, rank, step))


def _steps(view: TraceView) -> list[StepRow]:
    """The steps of all ranks."""
    level = view.timeline.level("", every=True)
    steps = view.trace["steps"]
    keys = zip(steps["step"].tolist(), steps["rank"].tolist(), strict=True)
    times = step_lengths(steps), steps["device_busy_ns"], steps["device_idle_ns"]
    measured = dict(
        zip(keys, zip(*(column.tolist() for column in times), strict=True), strict=True)
    )
    rows = []
    for row, operation in enumerate(level.operations):
        step = StepId.of(operation.id)
        measures = measured[step.step, step.rank]
        start, end = int(level.costs.start_ns[row]), int(level.costs.end_ns[row])
        rows.append(StepRow(operation.id, *step, start, end, *measures))
    return rows
