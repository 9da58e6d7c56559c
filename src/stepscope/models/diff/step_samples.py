"""One side of a comparison: its steps, and how each spends its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.base.arrays import Floats, Ids, IntArray, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.device.idle import busiest_device
from stepscope.facts.annotate.links.launches import device_work, launching_operator, on_host
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.facts.annotate.steps.missing_work import notes_on_missing, work_is_missing
from stepscope.facts.annotate.steps.step_table import (
    no_such_rank,
    ranks_with_steps,
    require_steps,
    step_lengths,
)
from stepscope.trace.recorded_steps import core_share, load_warning
from stepscope.trace.row_order import places_among
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Key = tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """Values of the parts of one kind: stages, modules, operators, kernels."""

    times: Mapping[Key, Floats]  # time in each step by key, ns, float64, shape (steps,)
    # occurrences in each step by key, float64, shape (steps,); empty if meaningless
    counts: Mapping[Key, Floats] = field(default_factory=dict)


def totals(key: Ids, step: Ids, time: IntArray | None, shape: tuple[int, int]) -> Floats:
    """The time of events by key and step, or how many there are, float64, shape (keys, steps)."""
    return np.bincount(key * shape[1] + step, time, shape[0] * shape[1]).astype(np.float64).reshape(shape)


_NONE = "unknown"


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of one trace."""

    source: str
    rank: int
    steps: list[int]
    evidence: str
    step_ns: Floats  # the length of each step, ns, float64, shape (steps,)
    on_device: bool  # whether device work is measured, or else operators on the CPU
    parts: Mapping[str, Sample]  # samples of time use, stages, kinds of work, modules, operators and kernels
    facts: Mapping[str, str]  # what should be equal on both sides, by name
    # the share of a core that the process got; None if unknown, or of no matter for device work
    core_share: float | None = None
    load: str = ""  # how other processes slowed the steps; empty if they did not
    notes: Sequence[str] = ()  # what of the steps is not in the file
    missing: str = ""  # why their busy and idle times are not known; empty if they are


def measure_run(trace: Trace, rank: int | None = None, on_device: bool | None = None) -> MeasuredRun:
    """Measure the steps of one rank: their device work, or operators on the CPU; by default what
    the trace has. Raises TraceError if there is no such rank, or it has no steps."""
    require_steps(trace, "compare their flame graphs (stepscope view A B)")
    rank = ranks_with_steps(trace)[0] if rank is None else rank
    steps = trace["steps"].take(trace["steps"]["rank"] == rank)
    if not len(steps):
        raise TraceError(f"{trace.metadata.source}: {no_such_rank(trace, rank)}")
    work = _StepWork.of(trace, rank, steps, on_device)
    return MeasuredRun(
        source=trace.metadata.source,
        rank=rank,
        steps=steps["step"].tolist(),
        evidence=steps.text("evidence")[0] or "",
        step_ns=step_lengths(steps).astype(np.float64),
        on_device=work.on_device,
        parts={
            "time use": _time_use(trace, rank, steps),
            "stages": _stages(trace, rank, steps),
            "kinds": work.by(trace.events.text("kind")),
            "modules": _modules(trace, work),
            "operators": _operators(trace, work),
            "kernels": work.by(trace.events.text("name")) if work.on_device else Sample({}),
        },
        facts=_facts(trace),
        core_share=None if work.on_device else core_share(trace.metadata.capture_of(rank)),
        load=load_warning(trace.metadata.capture_of(rank)),
        notes=notes_on_missing(trace, rank),
        missing=work_is_missing(trace, rank),
    )


def has_device(trace: Trace) -> bool:
    """Whether a trace holds device work that belongs to a step."""
    return bool((device_work(trace) & (trace.events["step"] >= 0)).any())


def _facts(trace: Trace) -> dict[str, str]:
    metadata = trace.metadata
    names = sorted({str(device.get("name", "")) for device in metadata.devices} - {""})
    return {
        "device": ", ".join(names),
        "framework": f"{metadata.framework} {metadata.framework_version}".strip(),
        "ranks": str(metadata.world_size),
    }


@dataclass(frozen=True)
class _StepWork:
    """The measured events: device work, or operators with their self time."""

    rows: Ids
    step: Ids
    time: Times
    steps: int
    on_device: bool

    @classmethod
    def of(cls, trace: Trace, rank: int, steps: Table, on_device: bool | None) -> "_StepWork":
        events = trace.events
        on_device = has_device(trace) if on_device is None else on_device
        of_rank = (trace["tracks"]["rank"] == rank)[events["track"]] & (events["step"] >= 0)
        calls = on_host(trace) & events.text("category").mask("cpu_op", "runtime", "communication")
        rows = np.flatnonzero(of_rank & (device_work(trace) if on_device else calls))
        place = places_among(steps["step"], events["step"][rows])
        rows, place = rows[place >= 0], place[place >= 0]
        time = events["duration_ns" if on_device else "self_ns"][rows]
        return cls(rows, place, time, len(steps), on_device)

    def by(self, text: Text) -> Sample:
        """Time and count by the value of a text column, shape (events,)."""
        chosen = text.take(self.rows).compact()
        codes = np.where(chosen.codes >= 0, chosen.codes, len(chosen.values)).astype(np.int64)
        unnamed = [_NONE] if (chosen.codes < 0).any() else []
        keys: list[Key] = [(value,) for value in [*chosen.values, *unnamed]]
        shape = len(keys), self.steps
        sums = (totals(codes, self.step, values, shape) for values in (self.time, None))
        return Sample(*(dict(zip(keys, table, strict=True)) for table in sums))


def _time_use(trace: Trace, rank: int, steps: Table) -> Sample:
    """Busy time, exposed communication and idle time by cause of the busiest device, each step."""
    device = busiest_device(trace, rank)
    if device < 0:
        return Sample({})
    idle = trace["idle"]
    rows = np.flatnonzero((idle["rank"] == rank) & (idle["device"] == device))
    place = places_among(steps["step"], idle["step"][rows])
    length = (idle["end_ns"] - idle["start_ns"])[rows]
    times: dict[Key, Floats] = {("device busy",): steps["device_busy_ns"].astype(np.float64)}
    spent = totals(idle["cause"][rows].astype(np.int64), place, length, (len(IDLE_CAUSES), len(steps)))
    for cause, value in zip(IDLE_CAUSES, spent, strict=True):
        name = "busy: exposed communication" if cause == "communication" else f"idle: {cause}"
        times[(name,)] = value
    return Sample({key: value for key, value in times.items() if value.any()})


def _stages(trace: Trace, rank: int, steps: Table) -> Sample:
    runs = trace["stages"].take(trace["stages"]["rank"] == rank)
    place = places_among(steps["step"], runs["step"])
    runs, place = runs.take(place >= 0), place[place >= 0]
    stage, shape = runs["stage"].astype(np.int64), (len(STAGES), len(steps))
    cpu, device = (totals(stage, place, runs[column], shape) for column in ("cpu_ns", "device_ns"))
    times: dict[Key, Floats] = {}
    for code, name in enumerate(STAGES):
        times |= {(name, "CPU"): cpu[code], (name, "device"): device[code]}
    return Sample({key: value for key, value in times.items() if value.any()})


def _operators(trace: Trace, work: _StepWork) -> Sample:
    """Work by the operator that launches it; on the CPU by the operator itself."""
    names = trace.events.text("name")
    if not work.on_device:
        return work.by(names)
    caller = launching_operator(trace)
    return work.by(Text(np.where(caller >= 0, names.codes[caller], -1), names.values))


def _modules(trace: Trace, work: _StepWork) -> Sample:
    """Work of each module, its children included."""
    modules = trace["modules"]
    if not len(modules):
        return Sample({})
    own = trace.events["module"][work.rows].astype(np.int64)
    inside = own >= 0
    keys: list[Key] = [(path or "(model)",) for path in modules.text("path")]
    own_times = totals(own[inside], work.step[inside], work.time[inside], (len(modules), work.steps))
    times = subtree_totals(own_times, modules["parent"])
    return Sample({key: row for key, row in zip(keys, times, strict=True) if row.any()})
