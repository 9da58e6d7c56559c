"""What a report says, for the page: overview, model tree, kernels and collectives."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from stepscope.base.typed_data import convert
from stepscope.errors import TraceError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.facts.roofline.rates import rates_of
from stepscope.facts.summary.facts import Facts, KernelStatistics, ModuleNode, Summary, Warning, busiest_ms
from stepscope.facts.summary.job_findings import JobFindings
from stepscope.facts.summary.kernels import kernel_statistics
from stepscope.facts.summary.report_facts import summarize, warnings_of
from stepscope.facts.timeline.operation import StepId
from stepscope.models.memory.device_facts import holds_memory
from stepscope.models.ranks.collective_table import (
    ArrivalMatrix,
    Collectives,
    arrival_matrix,
    collective_table,
    has_collectives,
)
from stepscope.models.ranks.job import findings_of

_CONFIGURATION = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_bytes": "shared memory",
    "blocks_per_sm": "blocks per SM",
    "warps_per_sm": "warps per SM",
}
_OCCUPANCY = "est. achieved occupancy %"


class StepRow(msgspec.Struct):
    """A recorded step."""

    id: str  # its path in the timeline
    step: int
    rank: int
    start_ns: int
    end_ns: int
    runtime_ns: int  # the step length, that of its window
    device_busy_ns: int  # busy time of the busiest device in its window
    device_idle_ns: int  # idle time of this device; both are 0 if none works


class Has(msgspec.Struct):
    """What the trace holds."""

    device: bool
    communication: bool  # collectives, or messages between ranks
    modules: bool
    memory: bool  # allocations
    source: bool
    contexts: bool


class Overview(msgspec.Struct):
    """The facts of one rank, and what the page needs to begin."""

    start: str  # path of the step to open first: the slowest of the rank that the job is judged by
    rank: int
    ranks: list[int]  # all ranks; the facts are of `rank` alone
    steps: list[StepRow]  # of all ranks
    has: Has
    facts: Facts | None  # null if no step was recorded
    why: str  # why there are no facts, else empty
    warnings: list[Warning]  # of this rank
    job: JobFindings | None  # what all ranks show together, null for a single one


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
        job=findings_of(view.job) if view.job else None,
    )


def _facts(view: TraceView, query: Query) -> tuple[Facts | None, str]:
    try:
        summary = summary_of(view, query)
    except TraceError as error:
        if len(view.trace["steps"]):
            raise
        return None, str(error)
    return filled(Facts, summary), ""


def summary_of(view: TraceView, query: Query) -> Summary:
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("summary", rank, step), lambda: summarize(view.trace, rank, step))


def _steps(view: TraceView) -> list[StepRow]:
    level = view.timeline.level("", every=True)
    steps = view.trace["steps"]
    keys = zip(steps["step"].tolist(), steps["rank"].tolist(), strict=True)
    times = step_lengths(steps), steps["device_busy_ns"], steps["device_idle_ns"]
    measured = dict(zip(keys, zip(*(column.tolist() for column in times), strict=True), strict=True))
    rows = []
    for row, operation in enumerate(level.operations):
        step = StepId.of(operation.id)
        measures = measured[step.step, step.rank]
        start, end = int(level.costs.start_ns[row]), int(level.costs.end_ns[row])
        rows.append(StepRow(operation.id, *step, start, end, *measures))
    return rows


class Modules(msgspec.Struct):
    """The model tree of one rank."""

    steps: list[int]  # numbers of the steps that times are means of
    step_ms: float  # their mean length
    at_once: float  # how many devices, or threads, do a module's work at once, in the mean; times are sums
    evidence: str  # how modules were found
    rest_cpu_ms: float  # the rest of a step, in which no module runs on the CPU
    rest_device_ms: float  # busy time of the device that computes longest, of no module
    tree: list[ModuleNode]


class KernelRow(KernelStatistics, frozen=True, kw_only=True):
    """Device work of one name (operators if there is no device), mean per step."""

    short: str  # name shortened for display
    blocks_per_sm: float | None
    occupancy: float | None


class Roofs(msgspec.Struct):
    """Peak rates of the device, the roofs of a roofline plot."""

    device: str  # its short name
    gbytes: float | None  # memory bandwidth, GB/s; null if unknown
    tflops: dict[str, float]  # peak rate for each precision in use, TFLOP/s


class Kernels(msgspec.Struct):
    """All kernels of one rank, the longest first."""

    are: str  # `kernels`, or `operators` for a trace without device work
    rank: int
    steps: list[int]  # numbers of the steps that times are means of
    rows: list[KernelRow]
    roofs: Roofs | None  # null if the device, or its peak rates, are unknown


class KernelLaunch(msgspec.Struct):
    """Launch configuration of a kernel, as recorded."""

    grid: list[int] | None
    block: list[int] | None
    registers: float | None  # for each thread
    shared_bytes: float | None  # for each block
    blocks_per_sm: float | None
    warps_per_sm: float | None
    occupancy: float | None  # estimated, 0 to 1


def modules(view: TraceView, query: Query) -> Modules:
    """The model tree with its costs.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    summary = summary_of(view, query)
    step_ms, busy_ms, roots = summary.steps.mean_ms, busiest_ms(summary.devices), summary.modules
    at_once = summary.at_once
    return Modules(
        steps=summary.steps.numbers,
        step_ms=step_ms,
        at_once=at_once,
        evidence=summary.modules_evidence,
        rest_cpu_ms=max(step_ms - sum(root.cpu_ms for root in roots) / at_once, 0.0),
        rest_device_ms=max(busy_ms - sum(root.device_ms for root in roots) / at_once, 0.0),
        tree=roots,
    )


def kernels(view: TraceView, query: Query) -> Kernels:
    """Device work by name, or operators if there is no device work.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    summary = summary_of(view, query)
    selected = view.selected(summary.rank, query.number("step"))
    key = "kernels", summary.rank, query.number("step")
    statistics = view.cached(key, lambda: kernel_statistics(selected, summary.kernels))
    rows = [_kernel_row(view, one) for one in statistics]
    return Kernels(summary.kernels_are, summary.rank, summary.steps.numbers, rows, _roofs(summary))


def kernel_launch(arguments: Mapping[str, Any]) -> KernelLaunch | None:
    """Launch configuration of a kernel by its recorded arguments; None if nothing is recorded."""
    found = {name: arguments.get(key) for name, key in _CONFIGURATION.items()}
    percent = arguments.get(_OCCUPANCY)
    found["occupancy"] = percent / 100 if isinstance(percent, (int, float)) else None
    if all(value is None for value in found.values()):
        return None
    return convert({name: _checked(name, value) for name, value in found.items()}, KernelLaunch)


def _checked(name: str, value: Any) -> Any:
    if name in ("grid", "block"):
        return value if isinstance(value, list) and all(type(size) is int for size in value) else None
    # Nsight Systems writes -1 for what it does not know.
    return value if isinstance(value, (int, float)) and value >= 0 else None


def _kernel_row(view: TraceView, kernel: KernelStatistics) -> KernelRow:
    launch = kernel_launch(view.trace.event_arguments(kernel.longest_event))
    return KernelRow(
        **asdict(kernel),
        short=view.short_name(kernel.longest_event),
        blocks_per_sm=launch.blocks_per_sm if launch else None,
        occupancy=launch.occupancy if launch else None,
    )


def _roofs(summary: Summary) -> Roofs | None:
    device = next((device.name for device in summary.devices if device.name), "")
    rates = rates_of(device)
    if rates is None:
        return None
    peaks = summary.efficiency.peak_tflops if summary.efficiency else {}
    return Roofs(rates["name"], rates.get("bandwidth"), peaks)


def collectives(view: TraceView, query: Query) -> Collectives:
    """Collectives by kind and process group.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("collectives", rank, step), lambda: collective_table(view.trace, rank, step))


def arrivals(view: TraceView, query: Query) -> ArrivalMatrix:
    """Collectives by rank: who arrives last at each, and who waits.

    Query:
        rank: whose steps; by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("arrivals", rank, step), lambda: arrival_matrix(view.trace, rank, step))
