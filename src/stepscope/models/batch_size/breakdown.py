"""The breakdown of a step: time and memory by module, operator and source line.

From the real iteration, backward included: every nanosecond of the recorded step belongs to one
operator, one module and one line, or is shown as untracked. Recording makes the step longer, so
times are scaled to the length of an unrecorded step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from stepscope.base.arrays import Ids, IntArray, Mask
from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.attribution import Attribution, attribute
from stepscope.facts.annotate.links.launches import device_work, launch_of, on_host
from stepscope.facts.annotate.range_names import Line
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.models.memory import owners
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory, recorded_memory
from stepscope.read import read
from stepscope.read.recorded.members_json import KeptStorage, kept_storages
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import distinct_rows
from stepscope.trace.trace import Trace

_NAMES = ["untracked" if kind == "unknown" else kind.replace(" ", "_") for kind in owners.KINDS]
# As `stepscope batch --json` orders them.
KINDS = ("weights", "buffers", *(name for name in _NAMES if name not in ("weights", "buffers")))
_SUMS = ("ms", "forward_ms", "backward_ms", "cpu_ms", "bytes", *(f"{kind}_bytes" for kind in KINDS))
_ROUNDING = 1e-6  # share of a step that sums of rounded times may lack


class CostNode(msgspec.Struct, kw_only=True):
    """A module, a stage or an operator, with what it holds.

    Numbers include those of the children, but for `self_ms` and `self_bytes`: there operators of
    the node's own count as its own. The step's children add up to the step.
    """

    name: str
    kind: Literal["step", "module", "stage", "operator"]
    calls: float = 0  # in a step
    ms: float = 0  # on the device where there is one
    forward_ms: float = 0
    backward_ms: float = 0
    cpu_ms: float = 0
    self_ms: float = 0  # time outside its children
    bytes: float = 0  # share of the peak
    self_bytes: float = 0
    weights_bytes: float = 0
    buffers_bytes: float = 0
    gradients_bytes: float = 0
    optimizer_state_bytes: float = 0
    activations_bytes: float = 0  # what its forward keeps for backward, whether or not at the peak
    inputs_bytes: float = 0
    temporaries_bytes: float = 0
    untracked_bytes: float = 0
    children: list[CostNode] = []
    class_: str | UnsetType = msgspec.field(default=UNSET, name="class")
    path: str | UnsetType = UNSET  # of a module
    file: str | UnsetType | None = UNSET  # where a module is called, or an operator; null if unknown
    line: int | UnsetType | None = UNSET
    defined_file: str | UnsetType | None = UNSET
    defined_line: int | UnsetType | None = UNSET
    parameters: int | UnsetType | None = UNSET

    def add(self, name: str, value: float) -> None:
        setattr(self, name, getattr(self, name) + value)


class OperatorTime(msgspec.Struct, frozen=True):
    """The part of a line's time that an operator takes."""

    name: str
    ms: float


class ModuleTime(msgspec.Struct, frozen=True):
    """The part of a line's time that a module takes."""

    path: str
    ms: float


class LineBreakdown(msgspec.Struct, kw_only=True):
    """What a source line costs per step, including what functions called there cost."""

    file: str
    line: int  # number, from 1
    ms: float = 0
    forward_ms: float = 0
    backward_ms: float = 0
    self_ms: float = 0  # time of the line's own calls of torch
    calls: int = 0
    activations_bytes: int = 0
    self_activations_bytes: int = 0
    weights_bytes: int = 0
    operators: list[OperatorTime] = []  # where the time goes, the longest first
    modules: list[ModuleTime] = []


class StepBreakdown(msgspec.Struct, frozen=True):
    """One step at one batch size."""

    batch: int
    step_ms: float
    recorded_ms: float  # the step that was recorded, the longest or largest of them
    peak_bytes: int
    # the peak by kind: weights, buffers, gradients, optimizer_state, activations, inputs, temporaries,
    # untracked
    memory: dict[str, int]
    tree: CostNode  # the step, its modules as the model nests them, and their operators
    lines: list[LineBreakdown]  # what each source line costs, the most expensive first

    def memory_at(self, batch: int, peak_bytes: int) -> dict[str, int]:
        """The peak at another batch size, by kind: what the model keeps stays, inputs grow with the
        batch, and activations and temporaries share the rest as they do here."""
        result = dict(self.memory)
        grown = ("inputs", "activations", "temporaries")
        result["inputs"] = round(result["inputs"] * batch / self.batch)
        fixed = sum(size for kind, size in result.items() if kind not in grown[1:])
        here = sum(self.memory[kind] for kind in grown[1:]) or 1
        for kind in grown[1:]:
            result[kind] = round(max(0, peak_bytes - fixed) * self.memory[kind] / here)
        return result


def read_breakdown(capture: Path, batch: int, step_ms: float) -> StepBreakdown | None:
    """The breakdown of a capture that a measuring process wrote; None if it has no complete step."""
    trace = annotate(read(capture))
    if not len(trace["steps"]):
        return None
    attribution = attribute(trace)
    footprint = find_footprint(trace, attribution)
    row = trace["steps"].take(trace["steps"]["step"] == footprint.step)
    ends_ns = np.maximum(row["end_ns"], row["device_end_ns"])
    recorded_ms = float(ends_ns[0] - row["start_ns"][0]) / 1e6
    scale = step_ms / recorded_ms if recorded_ms else 1.0
    costs = find_costs(trace, attribution, footprint.step, scale)
    memory, storages = footprint.split(), kept_storages(capture)
    return StepBreakdown(
        batch,
        step_ms,
        recorded_ms,
        sum(memory.values()),
        memory,
        cost_tree(trace, attribution, costs, footprint, step_ms),
        line_costs(attribution, costs, footprint, trace, storages),
    )


def cost_tree(
    trace: Trace, attribution: Attribution, costs: Iterable[Cost], footprint: Footprint, step_ms: float
) -> CostNode:
    """The step, its modules as the model nests them, and their operators; what no module has is in
    children of kind stage."""
    tree = _Tree(trace, attribution)
    for cost in costs:
        tree.add_cost(cost)
    if footprint.memory:
        recording = footprint.memory.recording
        for allocation, kind, size in footprint.sizes(footprint.peak):
            node = tree.owner_of(recording, allocation)
            node.add("bytes", size)
            if kind != "activations":
                node.add(f"{kind}_bytes", size)
        for allocation, _, size in footprint.sizes(footprint.kept):
            tree.owner_of(recording, allocation).add("activations_bytes", size)
    return tree.build(step_ms)


class _Tree:
    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        self._attribution = attribution
        self._modules = [*trace["modules"].rows()]
        self._nodes = [_module_node(row, len(trace["steps"])) for row in self._modules]
        self._stages: dict[str, CostNode] = {}
        self._operators: dict[tuple[int, int, int, int], CostNode] = {}
        self._root = CostNode(name="step", kind="step")

    def add_cost(self, cost: Cost) -> None:
        node = self._operator(cost.module, cost.stage, cost.operator, cost.lines)
        node.ms += cost.ms
        node.cpu_ms += cost.cpu_ms
        node.add("backward_ms" if cost.backward else "forward_ms", cost.ms)
        node.calls += cost.calls

    def owner_of(self, recording: AllocationRecord, allocation: int) -> CostNode:
        module, event = int(recording.module[allocation]), int(recording.event[allocation])
        if recording.storage[allocation] >= 0 or event < 0:
            return self._owner(module, -1)
        stage, operator = int(recording.stage[allocation]), int(self._attribution.operator[event])
        if operator < 0:
            return self._owner(module, stage)
        return self._operator(module, stage, operator, int(self._attribution.lines[event]))

    def build(self, step_ms: float) -> CostNode:
        """The whole tree, with the time in which nothing known runs, as on a device."""
        root = self._root
        for row, node in zip(self._modules, self._nodes, strict=True):
            parent = row["parent"]
            above = root if parent is None or parent < 0 else self._nodes[parent]
            above.children.append(node)
        root.children += self._stages.values()
        _sum_up(root)
        idle_ms = step_ms - root.ms
        if idle_ms > _ROUNDING * step_ms:
            root.children.append(CostNode(name="idle", kind="stage", ms=idle_ms, self_ms=idle_ms))
            root.ms = step_ms
        _sort(root)
        return root

    def _owner(self, module: int, stage: int) -> CostNode:
        if module >= 0:
            return self._nodes[module]
        name = STAGES[stage] if stage >= 0 else "untracked"
        return self._stages.setdefault(name, CostNode(name=name, kind="stage"))

    def _operator(self, module: int, stage: int, operator: int, lines: int) -> CostNode:
        stage = -1 if module >= 0 else stage
        lines = lines if operator >= 0 else -1
        key = (module, stage, operator, lines)
        if key not in self._operators:
            name = _operator_name(self._attribution, operator)
            stack = self._attribution.stacks[lines] if lines >= 0 else ()
            file, line = stack[-1] if stack else (None, None)
            self._operators[key] = CostNode(name=name, kind="operator", file=file, line=line)
            self._owner(module, stage).children.append(self._operators[key])
        return self._operators[key]


def _operator_name(attribution: Attribution, operator: int) -> str:
    return attribution.operators[operator] if operator >= 0 else "Python"


def _module_node(row: Mapping[str, Any], steps: int) -> CostNode:
    return CostNode(
        name=row["name"] or row["class"],
        kind="module",
        calls=row["calls"] // max(1, steps),
        path=row["path"],
        class_=row["class"],
        file=row["call_file"] or None,
        line=row["call_line"],
        defined_file=row["file"] or None,
        defined_line=row["line"],
        parameters=row["parameters"],
    )


def _sum_up(node: CostNode) -> None:
    for child in node.children:
        _sum_up(child)
    own = [child for child in node.children if child.kind == "operator"]
    node.self_ms = node.ms + sum(child.ms for child in own)
    node.self_bytes = node.bytes + sum(child.bytes for child in own)
    for name in _SUMS:
        node.add(name, sum(getattr(child, name) for child in node.children))


def _sort(node: CostNode) -> None:
    """Leave out children without a number, and put the longest first."""
    costly = (child for child in node.children if any(getattr(child, name) > 0 for name in _SUMS))
    node.children = sorted(costly, key=lambda child: -child.ms)
    for child in node.children:
        _sort(child)


def line_costs(
    attribution: Attribution,
    costs: Iterable[Cost],
    footprint: Footprint,
    trace: Trace,
    storages: Iterable[KeptStorage],
) -> list[LineBreakdown]:
    """Costs by line, the longest first."""
    lines = _Lines()
    _add_times(lines, attribution, costs, [*trace["modules"].text("path")])
    for allocation, _, size in footprint.sizes(footprint.kept):
        assert footprint.memory is not None
        event = footprint.memory.recording.event[allocation]
        if event >= 0 and attribution.lines[event] >= 0:
            stack = attribution.stacks[attribution.lines[event]]
            for line in dict.fromkeys(stack):
                lines[line].activations_bytes += size
            lines[stack[-1]].self_activations_bytes += size
    for storage in storages:
        if storage.kind == "parameter":
            for line in set(storage.lines):
                lines[line].weights_bytes += storage.bytes
    return sorted(lines.values(), key=lambda row: -row.ms)


class _Lines(dict[Line, LineBreakdown]):
    def __missing__(self, line: Line) -> LineBreakdown:
        self[line] = LineBreakdown(file=line[0], line=line[1])
        return self[line]


def _add_times(lines: _Lines, attribution: Attribution, costs: Iterable[Cost], paths: Sequence[str]) -> None:
    operators: dict[Line, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    modules: dict[Line, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cost in costs:
        stack = attribution.stacks[cost.lines] if cost.lines >= 0 else ()
        for line in dict.fromkeys(stack):
            row = lines[line]
            row.ms += cost.ms
            row.backward_ms += cost.ms * cost.backward
            row.forward_ms += cost.ms * (not cost.backward)
            operators[line][_operator_name(attribution, cost.operator)] += cost.ms
            if cost.module >= 0:
                modules[line][paths[cost.module]] += cost.ms
        for line in stack[-1:]:
            lines[line].self_ms += cost.ms
            lines[line].calls += cost.calls
    for line, row in lines.items():
        row.operators = [OperatorTime(*part) for part in _longest_first(operators[line])]
        row.modules = [ModuleTime(*part) for part in _longest_first(modules[line])]


def _longest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])


# -- one step: its time, cut into pieces of one module, operator and stack of lines, and its memory at the
# peak, by kind; both add up.


@dataclass(frozen=True)
class Cost:
    """Time with all that it belongs to."""

    module: int  # row of the modules table, or -1
    operator: int  # position in `Attribution.operators`; -1 for Python between operators
    lines: int  # position in `Attribution.stacks`, or -1
    stage: int  # position in STAGES, or -1
    backward: bool
    ms: float  # milliseconds, on the device where there is one
    cpu_ms: float
    calls: int


def find_costs(trace: Trace, attribution: Attribution, step: int, scale: float) -> list[Cost]:
    """The costs of a step; on a CPU they add up to it."""
    events = trace.events
    rows = np.flatnonzero((events["step"] == step) & on_host(trace) & _counted(trace))
    device_ns = _device_time(trace)
    on_device = bool(device_ns[np.flatnonzero(events["step"] == step)].any())
    names = ("module", "operator", "lines", "stage", "backward")
    groups, place = distinct_rows(*(getattr(attribution, name)[rows] for name in names))

    def total(values: IntArray) -> list[float]:
        return (np.bincount(place, values[rows].astype(float), len(groups)) * scale / 1e6).tolist()

    cpu = total(events["self_ns"])
    own = attribution.root == np.arange(len(events))
    calls = np.bincount(place[own[rows] & ~attribution.backward[rows]], minlength=len(groups))
    times = total(device_ns) if on_device else cpu
    parts = zip(groups, times, cpu, calls.tolist(), strict=True)
    return [
        Cost(module, operator, lines, stage, bool(backward), ms, cpu_ms, count)
        for (module, operator, lines, stage, backward), ms, cpu_ms, count in parts
    ]


def _counted(trace: Trace) -> Mask:
    """Events of the training loop's thread: on a CPU, time of others at the same time must not count
    twice. Events whose work is on a device count on whatever thread they are, as its time does."""
    counted: Mask = trace.events["track"] == main_track(trace)
    counted[trace["launches"]["cpu_event"]] = True
    return counted


def _device_time(trace: Trace) -> Ids:
    """The device time that each CPU event launched itself, ns, shape (events,)."""
    events, caller = trace.events, launch_of(trace)
    work = device_work(trace) & (caller >= 0)
    return np.bincount(caller[work], events["duration_ns"][work], len(events)).astype(np.int64)


@dataclass(frozen=True)
class Footprint:
    """The peak."""

    step: int
    memory: RecordedMemory | None = None  # None where no allocation was recorded
    peak: Ids | tuple[()] = ()  # the allocations that are alive at the peak, rows of `memory.lifetimes`
    kept: Ids | tuple[()] = ()  # the activations of that step that forward keeps for backward

    def sizes(self, rows: Ids | tuple[()]) -> list[tuple[int, str, int]]:
        """Allocation, kind and bytes of some rows."""
        if self.memory is None:
            return []
        life = self.memory.lifetimes
        kinds = (_NAMES[code] for code in life.kind[rows].tolist())
        return list(zip(np.asarray(rows).tolist(), kinds, life.bytes[rows].tolist(), strict=True))

    def split(self) -> dict[str, int]:
        """Bytes by kind; they add up to the peak; empty where memory is unknown."""
        result = dict.fromkeys(KINDS if self.memory else (), 0)
        for _, kind, size in self.sizes(self.peak):
            result[kind] += size
        return result


def find_footprint(trace: Trace, attribution: Attribution) -> Footprint:
    """The highest peak of the recorded steps; of the first step where nothing was allocated."""
    steps = trace["steps"]
    try:
        memory = recorded_memory(trace, attribution=attribution)
    except TraceError:
        return Footprint(int(steps["step"][0]))
    times, level = memory.lifetimes.over_time()
    inside = np.flatnonzero((times >= steps["start_ns"][0]) & (times < steps["end_ns"][-1]))
    if not len(inside):
        return Footprint(int(steps["step"][0]))
    time = float(times[inside[level[inside].argmax()]])
    number = int(np.searchsorted(steps["start_ns"], time, side="right")) - 1
    turn = _end_of_forward(trace, int(steps["step"][number]), int(steps["end_ns"][number]))
    activations = memory.lifetimes.kind == owners.ACTIVATIONS
    return Footprint(
        int(steps["step"][number]),
        memory,
        np.flatnonzero(memory.lifetimes.alive(time)),
        np.flatnonzero(memory.lifetimes.alive(turn - 1) & activations),
    )


def _end_of_forward(trace: Trace, step: int, end: int) -> int:
    """When the step's first backward event begins; the end of the step where it has none."""
    events = trace.events
    starts = events["start_ns"][(events["step"] == step) & (events["forward_event"] >= 0)]
    return int(starts.min()) if len(starts) else end
