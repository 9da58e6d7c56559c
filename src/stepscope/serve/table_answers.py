"""Answers that are tables: the model tree, the kernels and the collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stepscope.ranks.arrival_matrix import ArrivalMatrix, arrival_matrix
from stepscope.ranks.collective_table import CollectiveRow, collective_table
from stepscope.roofline import rates_of
from stepscope.serve.overview_answers import summary_of
from stepscope.serve.requests import Query
from stepscope.serve.trace_view import TraceView
from stepscope.summary.facts import Kernel, Node, Summary, busiest_ms
from stepscope.summary.work_table import WorkOfName, work_by_name
from stepscope.typed_data import convert

_CONFIGURATION = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_bytes": "shared memory",
    "blocks_per_sm": "blocks per SM",
    "warps_per_sm": "warps per SM",
}
_OCCUPANCY = "est. achieved occupancy %"


class ModuleNode(msgspec.Struct):
    """A module, or `count` equal modules in a row; times are means a step.

    Attributes:
        path: of the first of them.
        modules: ids of all of them.
        calls: mean a step.
        outside_cpu_ms, outside_device_ms: outside of training, as in rollouts and evaluation.
        flops: of matrix products, convolutions and attention, a step; null if unknown.
        intensity: FLOPs per byte of all work whose FLOPs and bytes are known; null if none is.
        file: where its class is defined, empty if unknown.
        call_file: where it is called, empty if unknown.
        spread_ms: least and most time of one of them.
        copies: each of them alone and without children, if `count` is above 1.
    """

    name: str
    class_: str = msgspec.field(name="class")
    path: str
    count: int
    modules: list[int]
    calls: float
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float
    recompute_cpu_ms: float
    recompute_device_ms: float
    outside_cpu_ms: float
    outside_device_ms: float
    flops: float | None
    intensity: float | None
    parameters: int | None
    file: str
    line: int | None
    call_file: str
    call_line: int | None
    spread_ms: tuple[float, float]
    children: list[ModuleNode]
    copies: list[ModuleNode] | UnsetType = UNSET


class Modules(msgspec.Struct):
    """The model tree of one rank.

    Attributes:
        steps: numbers of the steps that times are means of.
        step_ms: their mean length.
        evidence: how modules were found.
        rest_cpu_ms: the rest of a step, in which no module runs on the CPU.
        rest_device_ms: busy time of the device that computes longest, of no module.
    """

    rank: int
    steps: list[int]
    step_ms: float
    evidence: str
    rest_cpu_ms: float
    rest_device_ms: float
    tree: list[ModuleNode]


class KernelRow(msgspec.Struct):
    """Device work of one name (operators if there is no device).

    Attributes:
        name: as recorded.
        short: shortened for display.
        kind: of work, such as `gemm`.
        count: mean a step.
        total_ms: mean a step.
        share: of all device work.
        longest_event: id of the longest piece.
        stages: share of the row's time in each stage.
        tflops: rate of computing, TFLOP/s.
        gbytes: rate of moving its inputs and outputs once, GB/s.
        intensity: FLOPs per byte moved.
        of_peak: time at the device's peak rate over measured time; above 1 only if a peak rate or
            a count is wrong.
        limit: which rate sets `of_peak`.
    """

    name: str
    short: str
    kind: str
    count: float
    total_ms: float
    share: float
    mean_ns: int
    least_ns: int
    most_ns: int
    std_ns: int
    longest_event: int
    stages: dict[str, float]
    blocks_per_sm: float | None
    occupancy: float | None
    tflops: float | None
    gbytes: float | None
    intensity: float | None
    of_peak: float | None
    limit: Literal["compute", "memory", ""] | None


class Roofs(msgspec.Struct):
    """Peak rates of the device, the roofs of a roofline plot.

    Attributes:
        device: its short name.
        gbytes: memory bandwidth, GB/s; null if unknown.
        tflops: peak rate for each precision in use, TFLOP/s.
    """

    device: str
    gbytes: float | None
    tflops: dict[str, float]


class Kernels(msgspec.Struct):
    """All kernels of one rank, the longest first.

    Attributes:
        are: `kernels`, or `operators` for a trace without device work.
        steps: numbers of the steps that times are means of.
        roofs: null if the device, or its peak rates, are unknown.
    """

    are: str
    rank: int
    steps: list[int]
    rows: list[KernelRow]
    roofs: Roofs | None


class KernelLaunch(msgspec.Struct):
    """Launch configuration of a kernel, as recorded.

    Attributes:
        registers: for each thread.
        shared_bytes: for each block.
        occupancy: estimated, 0 to 1.
    """

    grid: list[int] | None
    block: list[int] | None
    registers: float | None
    shared_bytes: float | None
    blocks_per_sm: float | None
    warps_per_sm: float | None
    occupancy: float | None


def modules(view: TraceView, query: Query) -> Modules:
    """The model tree with its costs.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    summary = summary_of(view, query)
    step_ms, busy_ms, roots = summary.steps.mean_ms, busiest_ms(summary.devices), summary.modules
    return Modules(
        rank=summary.rank,
        steps=summary.steps.numbers,
        step_ms=step_ms,
        evidence=summary.modules_evidence,
        rest_cpu_ms=max(step_ms - sum(root.cpu_ms for root in roots), 0.0),
        rest_device_ms=max(busy_ms - sum(root.device_ms for root in roots), 0.0),
        tree=_module_nodes(roots),
    )


def kernels(view: TraceView, query: Query) -> Kernels:
    """Device work by name, or operators if there is no device work.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    work = work_by_name(view.trace, rank, step)
    summary = summary_of(view, query)
    rates = {kernel.name: kernel for kernel in summary.kernels}
    rows = [_kernel_row(view, row, rates.get(row.name)) for row in work.rows]
    return Kernels(work.are, rank, work.steps, rows, _roofs(summary))


def kernel_launch(arguments: Mapping[str, Any]) -> KernelLaunch | None:
    """Launch configuration of a kernel by its recorded arguments; None if nothing is recorded."""
    found = {name: arguments.get(key) for name, key in _CONFIGURATION.items()}
    percent = arguments.get(_OCCUPANCY)
    found["occupancy"] = percent / 100 if isinstance(percent, (int, float)) else None
    if all(value is None for value in found.values()):
        return None
    return convert({name: _checked(name, value) for name, value in found.items()}, KernelLaunch)


def _checked(name: str, value: Any) -> Any:
    """A recorded value, None if it is not of the type that it should be."""
    if name in ("grid", "block"):
        is_triple = isinstance(value, list) and all(type(size) is int for size in value)
        return value if is_triple else None
    return value if isinstance(value, (int, float)) else None


def _module_nodes(nodes: Sequence[Node]) -> list[ModuleNode]:
    """The answer for a tree of modules, without recursion: it may be hundreds deep."""
    roots: list[ModuleNode] = []
    pending = [(nodes, roots)]
    while pending:
        siblings, answers = pending.pop()
        for node in siblings:
            answer = _module_node(node)
            answers.append(answer)
            pending.append((node.children, answer.children))
    return roots


def _module_node(node: Node) -> ModuleNode:
    """A module without its children."""
    names = (name for name in ModuleNode.__struct_fields__ if name not in _RENAMED)
    return ModuleNode(
        class_=node.kind,
        children=[],
        copies=[_module_node(copy) for copy in node.copies] or UNSET,
        **{name: getattr(node, name) for name in names},
    )


_RENAMED = ("class_", "children", "copies")


def _kernel_row(view: TraceView, row: WorkOfName, rates: Kernel | None) -> KernelRow:
    launch = kernel_launch(view.trace.event_arguments(row.longest_event))
    return KernelRow(
        **vars(row),
        short=view.short_name(row.longest_event),
        blocks_per_sm=launch.blocks_per_sm if launch else None,
        occupancy=launch.occupancy if launch else None,
        tflops=rates.tflops if rates else None,
        gbytes=rates.gbytes if rates else None,
        intensity=rates.intensity if rates else None,
        of_peak=rates.of_peak if rates else None,
        limit=_limit(rates),
    )


def _roofs(summary: Summary) -> Roofs | None:
    device = next((device.name for device in summary.devices if device.name), "")
    rates = rates_of(device)
    if rates is None:
        return None
    peaks = summary.efficiency.peak_tflops if summary.efficiency else {}
    return Roofs(rates["name"], rates.get("bandwidth"), peaks)


def _limit(rates: Kernel | None) -> Literal["compute", "memory", ""] | None:
    if rates is None:
        return None
    return "compute" if rates.limit == "compute" else "memory" if rates.limit == "memory" else ""


class Arrival(msgspec.Struct):
    """A rank at the collectives of a step.

    Attributes:
        late_ms: how much later it arrives than the median rank, ms per step; less than zero for
            one that waits longer.
    """

    rank: int
    late_ms: float


class Collectives(msgspec.Struct):
    """The collectives of one rank, those with the most exposed time first; ms per step.

    Attributes:
        steps: numbers of the steps that times are means of.
        step_ms: the step length.
        total_ms: time in which any collective runs.
        exposed_ms: the part in which the rank computes nothing.
        arrivals: of all ranks of the trace, the latest first; empty for one rank.
    """

    rank: int
    steps: list[int]
    step_ms: float
    total_ms: float
    exposed_ms: float
    arrivals: list[Arrival]
    rows: list[CollectiveRow]


def collectives(view: TraceView, query: Query) -> Collectives:
    """Collectives by kind and process group.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("collectives", rank, step), lambda: _collectives(view, rank, step))


def arrivals(view: TraceView, query: Query) -> ArrivalMatrix:
    """Collectives by rank: who arrives last at each, and who waits.

    Query:
        rank: whose steps; by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
    """
    rank, step = view.rank_of(query), query.number("step")
    return view.cached(("arrivals", rank, step), lambda: arrival_matrix(view.trace, rank, step))


def _collectives(view: TraceView, rank: int, step: int | None) -> Collectives:
    found = collective_table(view.trace, rank, step)
    late = sorted(found.late_ms.items(), key=lambda one: -one[1])
    return Collectives(
        found.rank, found.steps, found.step_ms, found.total_ms, found.exposed_ms,
        [Arrival(*one) for one in late],
        found.rows,
    )  # fmt: skip
