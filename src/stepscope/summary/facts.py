"""The facts of a report, for one rank, as means over its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.quiet import exposed_communication, python_time
from stepscope.annotate.steps import ranks_with_steps
from stepscope.summary.devices import Device, devices_of
from stepscope.summary.efficiency import Efficiency, Used, efficiency_of, flops_of_modules
from stepscope.summary.kernels import Kernel, kernels_of, time_by_kind
from stepscope.summary.part import Part
from stepscope.summary.tree import Node, module_tree
from stepscope.summary.verdict import Verdict, verdict
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MS = 1e-6


@dataclass(frozen=True)
class WarmUp:
    """A first step that is left out of all means, as it takes far longer than the others."""

    step: int
    ms: float


@dataclass(frozen=True)
class StepTimes:
    """Times of the chosen steps: how many, which, and their spread, ms; and what is left out."""

    numbers: list[int]
    evidence: str
    mean_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    warm_up: WarmUp | None


@dataclass(frozen=True)
class Stage:
    """A stage's mean time a step, ms, its share of the step, and what bounds it."""

    stage: str
    cpu_ms: float
    device_ms: float
    share: float
    bound_by: str


@dataclass(frozen=True)
class Summary:
    """Everything that a report tells of one rank; `to_json` gives it as plain data."""

    source: str
    framework: str
    rank: int
    world_size: int
    steps: StepTimes
    verdict: Verdict
    stages: list[Stage]
    devices: list[Device]
    efficiency: Efficiency | None
    kinds: dict[str, float]
    kernels: list[Kernel]
    kernels_are: str
    modules: list[Node]
    modules_evidence: str
    data_wait_ms: float
    parameters: int | None
    parameter_bytes: int | None
    peak_memory_bytes: dict[str, int]
    capture: Mapping[str, Any]
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
        return asdict(self)


def summarise(trace: Trace, rank: int | None = None, step: int | None = None) -> Summary:
    """The facts of one rank of a trace.

    Args:
        trace: an annotated trace.
        rank: which rank; by default the first that has steps.
        step: one step's number; by default the mean over all but a first one that warms up.

    Returns:
        Times are milliseconds a step.

    Raises:
        TraceError: if there is no such rank or step.

    Example:
        >>> summarise(stepscope.open("run.stepscope")).steps.mean_ms  # doctest: +SKIP
    """
    part = Part(trace, ranks_with_steps(trace)[0] if rank is None else rank, step)
    devices, stages, steps = devices_of(part), _stages(part), _step_times(part)
    used = Used(part, devices)
    names = trace.metadata.framework, trace.metadata.framework_version
    return Summary(
        source=trace.metadata.source,
        framework=" ".join(filter(None, names)),
        rank=part.rank,
        world_size=trace.metadata.world_size,
        steps=steps,
        verdict=verdict(
            steps.mean_ms, stages, devices, *(() if devices else _without_device(part))
        ),
        stages=stages,
        devices=devices,
        efficiency=efficiency_of(part, used, devices),
        kinds=time_by_kind(part),
        kernels=kernels_of(part, used),
        kernels_are="kernels" if devices else "operators",
        modules=module_tree(
            trace, part.rank, part.chosen_events, part.count, flops_of_modules(part, used)
        ),
        modules_evidence=_modules_evidence(trace),
        data_wait_ms=sum(one.cpu_ms for one in stages if one.stage == "data_loading"),
        parameters=_of_roots(part, "parameters"),
        parameter_bytes=_of_roots(part, "parameter_bytes"),
        peak_memory_bytes=_peak_memory(trace["memory"], part.rank),
        capture=trace.metadata.capture,
        warnings=[row for row in trace["warnings"].rows() if row["rank"] == part.rank],
    )


def _step_times(part: Part) -> StepTimes:
    length = _lengths(part.steps)
    left_out = zip(part.warming["step"].tolist(), _lengths(part.warming).tolist(), strict=True)
    return StepTimes(
        numbers=part.steps["step"].tolist(),
        evidence=part.steps.text("evidence")[0] or "",
        mean_ms=float(length.mean()),
        median_ms=float(np.median(length)),
        min_ms=float(length.min()),
        max_ms=float(length.max()),
        std_ms=float(length.std()),
        warm_up=next((WarmUp(*one) for one in left_out), None),
    )


def _lengths(steps: Table) -> NDArray[np.float64]:
    """How long each step lasts, ms."""
    length: NDArray[np.float64] = (steps["end_ns"] - steps["start_ns"]) * _MS
    return length


def _stages(part: Part) -> list[Stage]:
    """The stages that occur, in the order of the list of stages."""
    runs = part.rows_of(part.trace["stages"])
    codes = (code for code in range(len(STAGES)) if (runs["stage"] == code).any())
    return [_stage(part, runs.take(runs["stage"] == code), STAGES[code]) for code in codes]


def _stage(part: Part, runs: Table, stage: str) -> Stage:
    """A stage of its runs; what bounds it is what bounds the longest."""
    wall = int((part.steps["end_ns"] - part.steps["start_ns"]).sum())
    cpu, device = int(runs["cpu_ns"].sum()), int(runs["device_ns"].sum())
    longest = int(np.argmax(runs["cpu_ns"] + runs["device_ns"]))
    return Stage(
        stage,
        cpu * _MS / part.count,
        device * _MS / part.count,
        cpu / wall if wall else 0.0,
        runs.text("bound_by")[longest] or "",
    )


def _without_device(part: Part) -> tuple[dict[str, float], float]:
    """Shares of the steps in which only Python runs, by stage, and in which it only communicates.

    Where no operator was recorded nobody knows what ran.
    """
    trace, steps = part.trace, part.steps
    wall = int((steps["end_ns"] - steps["start_ns"]).sum()) or 1
    speaks = exposed_communication(trace, part.rank, steps).total() / wall
    if not len(part.work):
        return {}, speaks
    runs = part.rows_of(trace["stages"])
    quiet = python_time(trace, part.rank, steps).within(runs["start_ns"], runs["end_ns"])
    spent = np.bincount(runs["stage"], quiet, len(STAGES)) / wall
    return {STAGES[code]: float(spent[code]) for code in np.flatnonzero(spent).tolist()}, speaks


def _modules_evidence(trace: Trace) -> str:
    """How the modules were found, empty where there are none."""
    return next(iter(trace["modules"].text("evidence")), None) or ""


def _of_roots(part: Part, column: str) -> int | None:
    """The sum over the models of the rank, None where no parameter is known."""
    modules = part.trace["modules"]
    roots = (modules["parent"] < 0) & (modules["rank"] == part.rank) & (modules["parameters"] > 0)
    return int(modules[column][roots].sum()) if roots.any() else None


def _peak_memory(memory: Table, rank: int) -> dict[str, int]:
    """The most that was allocated on each device while recording, bytes."""
    mine = memory.take((memory["rank"] == rank) & (memory["allocated_bytes"] >= 0))
    device = mine.text("device")
    return {
        name: int(mine["allocated_bytes"][device.mask(name)].max())
        for name in device.compact().values
    }
