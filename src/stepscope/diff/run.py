"""One run of a comparison: its steps, and what each spent on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.steps import ranks_with_steps, require_steps
from stepscope.annotate.tracks import device_work, on_host
from stepscope.diff.sample import Floats, Ids, Key, Sample, sample
from stepscope.errors import TraceError
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]
_NONE = "(none)"


@dataclass(frozen=True)
class Run:
    """What is compared of one trace.

    Attributes:
        source: its file.
        rank: whose steps.
        steps: their numbers.
        evidence: what the steps were told by.
        step_ns: the length of each step, ns, float64, shape (steps,).
        on_device: whether work is a device's; else it is that of operators on the CPU.
        parts: samples by what they are of: time use, stages, modules, operators, kernels.
        facts: what should be the same on both sides, by name.
    """

    source: str
    rank: int
    steps: list[int]
    evidence: str
    step_ns: Floats
    on_device: bool
    parts: Mapping[str, Sample]
    facts: Mapping[str, str]


def measure_run(trace: Trace, rank: int | None = None, on_device: bool | None = None) -> Run:
    """Measure the steps of one rank.

    Args:
        trace: annotated.
        rank: whose steps; by default those of the first rank.
        on_device: compare device work (True) or operators on the CPU; by default what there is.

    Raises:
        TraceError: if there is no such rank, or it has no steps.
    """
    require_steps(trace, "compare their flame graphs (stepscope view A B)")
    rank = ranks_with_steps(trace)[0] if rank is None else rank
    steps = trace["steps"].take(trace["steps"]["rank"] == rank)
    if not len(steps):
        has = ", ".join(map(str, ranks_with_steps(trace)))
        raise TraceError(
            f"expected steps of rank {rank} in {trace.metadata.source}, found none; it has ranks "
            f"{has}"
        )
    work = _Work.of(trace, rank, steps, on_device)
    return Run(
        source=trace.metadata.source,
        rank=rank,
        steps=steps["step"].tolist(),
        evidence=steps.text("evidence")[0] or "",
        step_ns=(steps["end_ns"] - steps["start_ns"]).astype(np.float64),
        on_device=work.on_device,
        parts={
            "time use": _time_use(trace, rank, steps),
            "stages": _stages(trace, rank, steps),
            "modules": _modules(trace, work),
            "operators": _operators(trace, work),
            "kernels": _kernels(trace, work),
        },
        facts=_facts(trace),
    )


def has_device(trace: Trace) -> bool:
    """Whether a trace holds device work that belongs to a step."""
    return bool((device_work(trace) & (trace.events["step"] >= 0)).any())


def _facts(trace: Trace) -> dict[str, str]:
    metadata = trace.metadata
    names = sorted({str(one.get("name", "")) for one in metadata.devices} - {""})
    return {
        "device": ", ".join(names),
        "framework": f"{metadata.framework} {metadata.framework_version}".strip(),
        "ranks": str(metadata.world_size),
    }


# -- what is measured


@dataclass(frozen=True)
class _Work:
    """The events that are compared: pieces of device work, or operators with their own time."""

    rows: Ids
    step: Ids
    time: NDArray[np.int64]
    steps: int
    on_device: bool

    @classmethod
    def of(cls, trace: Trace, rank: int, steps: Table, on_device: bool | None) -> _Work:
        events = trace.events
        on_device = has_device(trace) if on_device is None else on_device
        mine = (trace["tracks"]["rank"] == rank)[events["track"]] & (events["step"] >= 0)
        calls = on_host(trace) & events.text("category").mask("cpu_op", "runtime", "communication")
        rows = np.flatnonzero(mine & (device_work(trace) if on_device else calls))
        numbers = steps["step"].astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        place = np.searchsorted(numbers[order], events["step"][rows])
        inside = (place < len(numbers)) & (
            numbers[order][np.minimum(place, len(numbers) - 1)] == events["step"][rows]
        )
        rows = rows[inside]
        time = events["duration_ns" if on_device else "self_ns"][rows]
        return cls(rows, order[place[inside]], time, len(numbers), on_device)

    def by(self, text: Text) -> Sample:
        """Time and count by the value of a column of text, shape (events,)."""
        chosen = text.take(self.rows).compact()
        codes = np.where(chosen.codes >= 0, chosen.codes, len(chosen.values)).astype(np.int64)
        keys = [(value,) for value in [*chosen.values, _NONE]]
        made = sample(keys, codes, self.step, self.time, self.steps)
        return made if (codes == len(chosen.values)).any() else _without(made, (_NONE,))


def _without(made: Sample, key: Key) -> Sample:
    return Sample(
        {one: value for one, value in made.times.items() if one != key},
        {one: value for one, value in made.counts.items() if one != key},
    )


def _time_use(trace: Trace, rank: int, steps: Table) -> Sample:
    """Of each step's device: busy, and idle by cause; of the device that works longest."""
    idle = trace["idle"].take(trace["idle"]["rank"] == rank)
    if not len(idle) and not steps["device_busy_ns"].any():
        return Sample({})
    places = {int(number): place for place, number in enumerate(steps["step"].tolist())}
    times: dict[Key, Floats] = {(f"idle: {cause}",): np.zeros(len(steps)) for cause in IDLE_CAUSES}
    devices, first = np.unique(idle["device"], return_counts=True)
    lengths = idle["end_ns"] - idle["start_ns"]
    totals = [lengths[idle["device"] == device].sum() for device in devices]
    busiest = devices[int(np.argmin(totals))] if len(first) else -1
    rows = np.flatnonzero(idle["device"] == busiest)
    for row in rows.tolist():
        cause = idle.text("cause")[row]
        if (place := places.get(int(idle["step"][row]))) is not None:
            times[(f"idle: {cause}",)][place] += lengths[row]
    busy: dict[Key, Floats] = {("device busy",): steps["device_busy_ns"].astype(np.float64)}
    return Sample(busy | {key: value for key, value in times.items() if value.any()})


def _stages(trace: Trace, rank: int, steps: Table) -> Sample:
    """CPU time and device time of each stage."""
    runs = trace["stages"].take(trace["stages"]["rank"] == rank)
    numbers = steps["step"].tolist()
    times: dict[Key, Floats] = {}
    for code, stage in enumerate(STAGES):
        for column, where in (("cpu_ns", "CPU"), ("device_ns", "device")):
            mine = runs["stage"] == code
            value = np.array([
                float(runs[column][mine & (runs["step"] == number)].sum()) for number in numbers
            ])  # fmt: skip
            if value.any():
                times[stage, where] = value
    return Sample(times)


def _kernels(trace: Trace, work: _Work) -> Sample:
    return work.by(trace.events.text("name")) if work.on_device else Sample({})


def _operators(trace: Trace, work: _Work) -> Sample:
    """Work by the operator that launched it; on the CPU by the operator itself."""
    names = trace.events.text("name")
    if not work.on_device:
        return work.by(names)
    caller = _launching_operator(trace)
    return work.by(Text(np.where(caller >= 0, names.codes[caller], -1), names.values))


def _launching_operator(trace: Trace) -> Ids:
    """The innermost operator or range around the launch of each event, -1 where there is none."""
    events = trace.events
    caller = launch_of(trace).astype(np.int64)
    runtime = events.text("category").mask("runtime")
    while (rising := (caller >= 0) & runtime[caller]).any():
        caller[rising] = events["parent"][caller[rising]]
    return caller


def _modules(trace: Trace, work: _Work) -> Sample:
    """Work of each module, what is inside it included."""
    modules = trace["modules"]
    if not len(modules):
        return Sample({})
    own = trace.events["module"][work.rows].astype(np.int64)
    inside = own >= 0
    keys: list[Key] = [(path or "(model)",) for path in modules.text("path")]
    size = len(modules)
    times = np.bincount(own[inside] * work.steps + work.step[inside], work.time[inside],
                        size * work.steps).reshape(size, work.steps)  # fmt: skip
    for row in reversed(range(size)):  # a module stands after the one around it
        if (above := int(modules["parent"][row])) >= 0:
            times[above] += times[row]
    return Sample({key: times[row] for row, key in enumerate(keys) if times[row].any()})
