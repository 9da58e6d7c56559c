"""The facts of a report, for one rank, as means over its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.idle import windows
from stepscope.annotate.tracks import device_work
from stepscope.errors import TraceError
from stepscope.summary.tree import Node, module_tree
from stepscope.summary.verdict import Verdict, verdict
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_MS = 1e-6


@dataclass(frozen=True)
class StepTimes:
    """Times of the chosen steps: how many, which, and their spread, ms."""

    numbers: list[int]
    evidence: str
    mean_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_ms: float


@dataclass(frozen=True)
class Stage:
    """A stage's mean time a step, ms, its share of the step, and what bounds it."""

    stage: str
    cpu_ms: float
    device_ms: float
    share: float
    bound_by: str


@dataclass(frozen=True)
class Device:
    """A device's mean time a step, ms: computing, only communicating, idle by cause."""

    device: int
    name: str
    window_ms: float
    computing_ms: float
    idle_ms: dict[str, float]
    communication_ms: float
    overlapped_ms: float


@dataclass(frozen=True)
class Kernel:
    """Device work of one name (operators where there is no device): mean a step."""

    name: str
    kind: str
    stage: str
    count: float
    total_ms: float
    share: float


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
        rank: which rank; by default the first.
        step: one step's number; by default the mean over all steps.

    Returns:
        Times are milliseconds a step.

    Raises:
        TraceError: if there is no such rank or step.

    Example:
        >>> summarise(stepscope.open("run.stepscope")).steps.mean_ms  # doctest: +SKIP
    """
    part = Part(trace, trace.metadata.ranks[0] if rank is None else rank, step)
    devices = part.devices()
    stages = part.stages()
    steps = part.step_times()
    kernels, kinds = part.kernels()
    modules = trace["modules"]
    roots = (modules["parent"] < 0) & (modules["rank"] == part.rank) & (modules["parameters"] > 0)
    return Summary(
        source=trace.metadata.source,
        framework=" ".join(
            filter(None, (trace.metadata.framework, trace.metadata.framework_version))
        ),
        rank=part.rank,
        world_size=trace.metadata.world_size,
        steps=steps,
        verdict=verdict(steps.mean_ms, stages, devices),
        stages=stages,
        devices=devices,
        kinds=kinds,
        kernels=kernels,
        kernels_are="kernels" if devices else "operators",
        modules=module_tree(trace, part.rank, part.chosen_events, part.count),
        modules_evidence=modules.text("evidence")[0] or "" if len(modules) else "",
        data_wait_ms=sum(one.cpu_ms for one in stages if one.stage == "data_loading"),
        parameters=int(modules["parameters"][roots].sum()) if roots.any() else None,
        parameter_bytes=int(modules["parameter_bytes"][roots].sum()) if roots.any() else None,
        peak_memory_bytes=_peak_memory(trace["memory"], part.rank),
        capture=trace.metadata.capture,
        warnings=[row for row in trace["warnings"].rows() if row["rank"] == part.rank],
    )


class Part:
    """The chosen steps of one rank.

    Args:
        trace: an annotated trace.
        rank: which rank.
        step: one step's number; None for all.

    Raises:
        TraceError: if there is no such rank or step.
    """

    def __init__(self, trace: Trace, rank: int, step: int | None) -> None:
        self.trace, self.rank = trace, rank
        steps = trace["steps"]
        if not len(steps):
            raise TraceError(_nothing_recorded(trace))
        mine = steps["rank"] == rank
        if not mine.any():
            raise TraceError(f"expected a rank of {list(trace.metadata.ranks)}, found {rank}")
        if step is not None:
            known = steps["step"][mine].tolist()
            mine &= steps["step"] == step
            if not mine.any():
                raise TraceError(f"expected a step of {known}, found {step}")
        self.steps = steps.take(mine)
        self.count = len(self.steps)
        self.start, self.end = self.steps["start_ns"], self.steps["end_ns"]

    def step_times(self) -> StepTimes:
        """How long the steps take."""
        length = (self.end - self.start) * _MS
        return StepTimes(
            numbers=self.steps["step"].tolist(),
            evidence=self.steps.text("evidence")[0] or "",
            mean_ms=float(length.mean()),
            median_ms=float(np.median(length)),
            min_ms=float(length.min()),
            max_ms=float(length.max()),
            std_ms=float(length.std()),
        )

    def of_table(self, table: Table) -> NDArray[np.bool_]:
        """Rows of a table with rank and step that are chosen."""
        chosen: NDArray[np.bool_] = (table["rank"] == self.rank) & np.isin(
            table["step"], self.steps["step"]
        )
        return chosen

    @cached_property
    def chosen_events(self) -> NDArray[np.bool_]:
        """Events of the steps, those on devices included, bool, shape (events,)."""
        events = self.trace.events
        rank = self.trace["tracks"]["rank"][events["track"]]
        chosen: NDArray[np.bool_] = (rank == self.rank) & np.isin(
            events["step"], self.steps["step"]
        )
        return chosen

    def stages(self) -> list[Stage]:
        """The stages in the order of the list of stages, those that occur."""
        runs = self.trace["stages"].take(self.of_table(self.trace["stages"]))
        wall = int((self.end - self.start).sum())
        found = []
        for code, stage in enumerate(STAGES):
            rows = runs["stage"] == code
            if not rows.any():
                continue
            cpu, device = int(runs["cpu_ns"][rows].sum()), int(runs["device_ns"][rows].sum())
            longest = int(np.argmax(np.where(rows, runs["cpu_ns"] + runs["device_ns"], -1)))
            found.append(
                Stage(
                    stage,
                    cpu * _MS / self.count,
                    device * _MS / self.count,
                    cpu / wall if wall else 0.0,
                    runs.text("bound_by")[longest] or "",
                )
            )
        return found

    def devices(self) -> list[Device]:
        """The devices that the steps use."""
        idle = self.trace["idle"].take(self.of_table(self.trace["idle"]))
        return [self._device(idle, int(device)) for device in np.unique(self._device_of_events())]

    def _device_of_events(self) -> NDArray[np.int32]:
        """The device of each piece of device work in the chosen steps."""
        events, tracks = self.trace.events, self.trace["tracks"]
        on = events["track"][self.chosen_events & device_work(self.trace)]
        result: NDArray[np.int32] = tracks["device"][on]
        return result

    def _device(self, idle: Table, device: int) -> Device:
        here = idle["device"] == device
        length = (idle["end_ns"] - idle["start_ns"]) * _MS / self.count
        causes = {
            cause: float(length[here & (idle["cause"] == code)].sum())
            for code, cause in enumerate(IDLE_CAUSES)
        }
        window = float(sum(end - start for start, end in self._windows()) * _MS / self.count)
        spoken = self._communication(device)
        return Device(
            device=device,
            name=self._device_name(device),
            window_ms=window,
            computing_ms=window - sum(causes.values()),
            idle_ms=causes,
            communication_ms=spoken,
            overlapped_ms=max(0.0, spoken - causes["communication"]),
        )

    def _windows(self) -> list[tuple[int, int]]:
        chosen = set(self.steps["step"].tolist())
        steps = self.trace["steps"]
        mine = self.trace.with_table(steps.take(steps["rank"] == self.rank))
        return [(start, end) for step, start, end in windows(mine) if step in chosen]

    def _communication(self, device: int) -> float:
        """Time in which any communication runs on the device, within the steps' windows."""
        events, tracks = self.trace.events, self.trace["tracks"]
        here = (tracks["device"] == device) & (tracks["rank"] == self.rank)
        rows = here[events["track"]] & events.text("category").mask("communication")
        start = events["start_ns"][rows]
        spoken = Intervals(start, start + events["duration_ns"][rows])
        return sum(spoken.clip(*span).total() for span in self._windows()) * _MS / self.count

    def _device_name(self, device: int) -> str:
        known = self.trace.metadata.devices
        names = [
            str(one.get("name", "")) for one in known if one.get("id", one.get("index")) == device
        ]
        return names[0] if names else ""

    def kernels(self) -> tuple[list[Kernel], dict[str, float]]:
        """Work by name, the longest first, and its time by kind, ms a step."""
        events = self.trace.events
        rows = np.flatnonzero(self.chosen_events & (events["kind"] >= 0))
        on_device = (self.trace["tracks"]["device"][events["track"][rows]] >= 0).any()
        time = events["duration_ns" if on_device else "self_ns"][rows]
        names, kinds = events.text("name").values, events.text("kind").values
        code = events["name"][rows]
        count = np.bincount(code, minlength=len(names))
        total = np.bincount(code, time, len(names))
        by_kind = np.bincount(events["kind"][rows], time, len(kinds))
        stage = self._main_stage(code, events["stage"][rows], time, len(names))
        whole = max(float(total.sum()), 1.0)
        first = np.full(len(names), -1)
        first[code[::-1]] = rows[::-1]
        found = [
            Kernel(
                names[code],
                events.text("kind")[first[code]] or "",
                stage[code] or "",
                float(count[code] / self.count),
                float(total[code] * _MS / self.count),
                float(total[code] / whole),
            )
            for code in np.flatnonzero(total).tolist()
        ]
        found.sort(key=lambda kernel: (-kernel.total_ms, kernel.name))
        order = [code for code in np.argsort(-by_kind, kind="stable").tolist() if by_kind[code]]
        return found, {kinds[code]: float(by_kind[code] * _MS / self.count) for code in order}

    def _main_stage(
        self,
        name: NDArray[np.integer],
        stage: NDArray[np.integer],
        time: NDArray[np.integer],
        names: int,
    ) -> Text:
        """The stage in which the work of each name spends most of its time."""
        told = stage >= 0
        key = name[told].astype(np.int64) * len(STAGES) + stage[told]
        spent = np.bincount(key, time[told] + 1.0, names * len(STAGES)).reshape(names, len(STAGES))
        return Text(np.where(spent.any(1), spent.argmax(1), -1), STAGES)


def _nothing_recorded(trace: Trace) -> str:
    why = trace.metadata.capture.get("message") or "it holds no event that lasts"
    return f"{trace.metadata.source}: expected at least one recorded step, found none: {why}"


def _peak_memory(memory: Table, rank: int) -> dict[str, int]:
    """The most that was allocated on each device while recording, bytes."""
    mine = memory.take((memory["rank"] == rank) & (memory["allocated_bytes"] >= 0))
    device = mine.text("device")
    return {
        name: int(mine["allocated_bytes"][device.mask(name)].max())
        for name in device.compact().values
    }
