"""The sketch of one rank: what job-wide analysis needs of its trace, in at most 100 kB."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stepscope.annotate.ranks import Recording, machine_of, recording_of
from stepscope.annotate.steps.step_table import steady_steps
from stepscope.arrays import Floats, Ids, Times
from stepscope.ranks.calls import (
    Calls,
    calls_of,
    calls_timeline,
    computing_on_device,
    waits_of,
)
from stepscope.ranks.kernel_times import kernel_times, operators, work_ns
from stepscope.ranks.late_launches import late_launches
from stepscope.ranks.module_times import module_times
from stepscope.trace.allocated_peaks import allocated_peaks
from stepscope.trace.clock_mapping import clock_of
from stepscope.trace.core_share import core_share
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.trace import Trace

VERSION = 12
UNKNOWN_RANK = -1
_MOST_STEPS = 200
_MOST_BYTES = 100_000


class Sketch(msgspec.Struct, frozen=True):
    """What is kept of one rank; times in ms.

    Attributes:
        rank, world_size: of the process.
        node: name of its machine, empty where unknown.
        device: name of its device, empty without one.
        steps: numbers of the steps, at most 200; a warm-up step is left out.
        length: of each step.
        work: by stage, for each step, the time in which this rank works itself: its device
            computes, or without a device its training thread does not wait for communication.
            `host` is the time in which the device has nothing to compute since the CPU launches
            late, see `late_launches`.
        waiting: for each step the exposed communication: waiting for other ranks, or transfer.
        idle: by cause, for each step.
        kernels: the work that takes longest, by name: how many a step, and the median duration;
            without a device operators, with the time in which they call no other.
        calls: its communication, call by call.
        kernel_steps: the duration of the longest kernels by step, see `kernel_times.by_step`.
        core_share: the share of a core that its training thread got while it could run, None if
            unknown.
        kernel_spread: of each of `kernels`, the durations that 10 and 90 % are below.
        modules: the modules that take longest, by path: the time of a step that 10, 50 and 90 %
            are below, with the modules inside.
        peak_memory: by device, the most memory allocated while recording, bytes; empty where that
            was not recorded.
        recording: when which process was recorded.
        version: of this format.
    """

    rank: int
    world_size: int
    node: str
    device: str
    steps: list[int]
    length: list[float]
    work: dict[str, list[float]]
    waiting: list[float]
    idle: dict[str, list[float]]
    kernels: dict[str, tuple[float, float]]
    calls: Calls = Calls()
    kernel_steps: bytes = b""
    core_share: float | None = None
    kernel_spread: list[tuple[float, float]] = []
    modules: dict[str, tuple[float, float, float]] = {}
    peak_memory: dict[str, int] = {}
    recording: Recording = Recording()
    version: int = VERSION

    @property
    def peak_bytes(self) -> int | None:
        """The largest peak of memory of a device; on a rank without one that of the CPU."""
        devices = {name: peak for name, peak in self.peak_memory.items() if name != "cpu"}
        return max((devices or self.peak_memory).values(), default=None)


def sketch_of(trace: Trace, node: str = "") -> Sketch:
    """The sketch of a trace of one rank.

    Args:
        trace: an annotated trace.
        node: name of its machine, where the trace does not say.
    """
    steps = trace["steps"]
    kept = np.flatnonzero(steady_steps(steps))[:_MOST_STEPS]
    numbers = steps["step"][kept].astype(np.int64)
    computing = computing_on_device(trace)
    waits = waits_of(trace)
    begins, ends = steps["window_start_ns"][kept], steps["window_end_ns"][kept]
    timeline = calls_timeline(trace, begins, ends, computing, waits)
    work = (
        _device_stages(trace, numbers, computing, begins, ends, timeline.waits)
        if len(computing) else _cpu_stages(trace, numbers, waits)
    )  # fmt: skip
    worked = computing if len(computing) else operators(trace)
    taken = worked, work_ns(trace, worked), _positions(trace.events["step"][worked], numbers)
    kernels = kernel_times(trace, *taken, len(numbers))
    sketch = Sketch(
        rank=trace.metadata.ranks[0],
        world_size=trace.metadata.world_size,
        node=node or machine_of(trace),
        device=_device(trace, computing),
        steps=numbers.tolist(),
        length=_ms(ends - begins),
        work={stage: _ms(values) for stage, values in work.items() if values.any()},
        waiting=_ms(_exposed(trace, numbers, waits)),
        idle={
            cause: _ms(values) for cause, values in _idle(trace, numbers).items() if values.any()
        },
        kernels=kernels.kernels,
        kernel_spread=kernels.spread,
        kernel_steps=kernels.by_step,
        modules=module_times(trace, *taken, len(numbers)),
        peak_memory=allocated_peaks(trace["memory"], trace.metadata.ranks[0]),
        core_share=core_share(trace.metadata.capture),
        recording=recording_of(trace),
        calls=calls_of(trace, begins, ends, clock_of(trace.metadata), computing, timeline),
    )  # fmt: skip
    return within_limit(sketch)


def within_limit(sketch: Sketch) -> Sketch:
    """The sketch, with the calls of fewer steps where it would be larger than 100 kB."""
    while sketch.calls.packed and len(msgspec.msgpack.encode(sketch)) > _MOST_BYTES:
        sketch = msgspec.structs.replace(sketch, calls=sketch.calls.of_every_second_step())
    return sketch


def _device(trace: Trace, computing: Ids) -> str:
    """The name of the device that computes."""
    device = trace["tracks"]["device"][trace.events["track"][computing]]
    known = trace.metadata.device(int(device[0])) if len(device) else {}
    return str(known.get("name", ""))


def _device_stages(
    trace: Trace, numbers: Ids, computing: Ids, begins: Times, ends: Times, waits: Intervals
) -> dict[str, Floats]:
    """Device work by stage and step, data loading, and what the CPU keeps the device waiting."""
    late = late_launches(trace, computing, begins, ends, waits)
    return {
        **_by_step(trace, computing, numbers),
        "data_loading": _loading(trace, numbers),
        "host": late.within(begins, ends).astype(np.float64),
    }


def _by_step(trace: Trace, rows: Any, numbers: Ids) -> dict[str, Floats]:
    """Durations of events, summed by stage and step, in ns."""
    events = trace.events
    place = _positions(events["step"][rows], numbers)
    stage = events["stage"][rows]
    inside = (place >= 0) & (stage >= 0)
    key = place[inside] * len(STAGES) + stage[inside]
    total = np.bincount(key, events["duration_ns"][rows][inside], len(numbers) * len(STAGES))
    table = total.astype(np.float64).reshape(len(numbers), len(STAGES))
    return {name: table[:, code] for code, name in enumerate(STAGES)}


def _loading(trace: Trace, numbers: Ids) -> Floats:
    return _stage_cpu(trace, numbers, "data_loading")


def _stage_cpu(trace: Trace, numbers: Ids, stage: str) -> Floats:
    """The training thread's time in a stage, for each step, in ns."""
    runs = trace["stages"]
    place = _positions(runs["step"], numbers)
    mine = runs.text("stage").mask(stage) & (place >= 0)
    return np.bincount(place[mine], runs["cpu_ns"][mine], len(numbers)).astype(np.float64)


def _cpu_stages(trace: Trace, numbers: Ids, waits: Intervals) -> dict[str, Floats]:
    """Without a device: the training thread's time by stage, less its communication."""
    runs = trace["stages"]
    place = _positions(runs["step"], numbers)
    lost = waits.within(runs["start_ns"], runs["end_ns"])
    key = place * len(STAGES) + runs["stage"]
    inside = place >= 0
    own = np.maximum(runs["cpu_ns"] - lost, 0)[inside]
    total = np.bincount(key[inside], own, len(numbers) * len(STAGES))
    table = total.astype(np.float64).reshape(len(numbers), len(STAGES))
    return {stage: table[:, code] for code, stage in enumerate(STAGES)}


def _exposed(trace: Trace, numbers: Ids, waits: Intervals) -> Floats:
    """Communication by step, in ns: of the device where it has any, else while nothing computes."""
    events = trace.events
    mine = events.text("category").mask("communication")
    rows = np.flatnonzero(mine & (trace["tracks"]["device"][events["track"]] >= 0))
    if not len(rows):
        steps = trace["steps"].take(np.isin(trace["steps"]["step"], numbers))
        return waits.within(steps["start_ns"], steps["end_ns"]).astype(np.float64)
    outer = rows[~np.isin(events["parent"][rows], rows)]
    place = _positions(events["step"][outer], numbers)
    inside = place >= 0
    total = np.bincount(place[inside], events["duration_ns"][outer][inside], len(numbers))
    return total.astype(np.float64)


def _idle(trace: Trace, numbers: Ids) -> dict[str, Floats]:
    gaps = trace["idle"]
    place = _positions(gaps["step"], numbers)
    length = gaps["end_ns"] - gaps["start_ns"]
    found = {}
    for cause in IDLE_CAUSES:
        mine = gaps.text("cause").mask(cause) & (place >= 0)
        found[cause] = np.bincount(place[mine], length[mine], len(numbers)).astype(np.float64)
    return found


def _positions(steps: Ids, numbers: Ids) -> Ids:
    """The position of each step among `numbers`, -1 where it is none of them."""
    if not len(numbers):
        return np.full(len(steps), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.minimum(np.searchsorted(numbers[order], steps), len(numbers) - 1)
    return np.where(numbers[order][place] == steps, order[place], -1).astype(np.int64)


def _ms(values: Any) -> list[float]:
    return [round(float(value) / 1e6, 4) for value in values]
