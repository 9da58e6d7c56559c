"""The sketch of one rank: what job-wide analysis needs of its trace, in at most 100 kB."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stepscope.annotate.device.host_idle import exposed_communication
from stepscope.annotate.names.communication_names import is_communication_wait
from stepscope.annotate.steps.warm_up import steady_steps
from stepscope.arrays import Floats, Ids
from stepscope.ranks.calls import Calls, calls_of, computing_on_device
from stepscope.trace.clocks import clock_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.trace import Trace

VERSION = 4
UNKNOWN_RANK = -1
_MOST_STEPS = 200
_MOST_KERNELS = 100
_NAME_LETTERS = 120


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
            `host` is the time in which the device is idle since the CPU launches late.
        waiting: for each step the exposed communication: waiting for other ranks, or transfer.
        idle: by cause, for each step.
        kernels: the work that takes longest, by name: how many a step, and the median duration;
            without a device operators, with the time in which they call no other.
        calls: its communication, call by call.
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
    version: int = VERSION


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
    work = (
        _device_stages(trace, numbers, computing) if len(computing) else _cpu_stages(trace, numbers)
    )
    device = trace["tracks"]["device"][trace.events["track"][computing]]
    known = trace.metadata.device(int(device[0])) if len(device) else {}
    return Sketch(
        rank=trace.metadata.ranks[0],
        world_size=trace.metadata.world_size,
        node=node or _host(trace),
        device=str(known.get("name", "")),
        steps=numbers.tolist(),
        length=_ms(steps["window_end_ns"][kept] - steps["window_start_ns"][kept]),
        work={stage: _ms(values) for stage, values in work.items() if values.any()},
        waiting=_ms(_exposed(trace, numbers)),
        idle={
            cause: _ms(values) for cause, values in _idle(trace, numbers).items() if values.any()
        },
        kernels=_kernels(trace, numbers, computing if len(computing) else _operators(trace)),
        calls=calls_of(
            trace, steps["window_start_ns"][kept], steps["window_end_ns"][kept],
            clock_of(trace.metadata), computing,
        ),
    )  # fmt: skip


def _device_stages(trace: Trace, numbers: Ids, computing: Ids) -> dict[str, Floats]:
    """Device work by stage and step, data loading, and what the CPU keeps the device waiting."""
    found = _by_step(trace, computing, numbers)
    return {
        **found,
        "data_loading": _loading(trace, numbers),
        "host": _idle(trace, numbers)["host"],
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


def _cpu_stages(trace: Trace, numbers: Ids) -> dict[str, Floats]:
    """Without a device: the training thread's time by stage, less its communication."""
    runs, waits = trace["stages"], _waits(trace)
    place = _positions(runs["step"], numbers)
    lost = waits.within(runs["start_ns"], runs["end_ns"])
    key = place * len(STAGES) + runs["stage"]
    inside = place >= 0
    own = np.maximum(runs["cpu_ns"] - lost, 0)[inside]
    total = np.bincount(key[inside], own, len(numbers) * len(STAGES))
    table = total.astype(np.float64).reshape(len(numbers), len(STAGES))
    return {stage: table[:, code] for code, stage in enumerate(STAGES)}


def _waits(trace: Trace) -> Intervals:
    """Without a device: when the rank only waits for its communication."""
    return exposed_communication(trace, trace.metadata.ranks[0], trace["steps"])


def _exposed(trace: Trace, numbers: Ids) -> Floats:
    """Communication by step, in ns: of the device where it has any, else while nothing computes."""
    events = trace.events
    mine = events.text("category").mask("communication")
    rows = np.flatnonzero(mine & (trace["tracks"]["device"][events["track"]] >= 0))
    if not len(rows):
        steps = trace["steps"].take(np.isin(trace["steps"]["step"], numbers))
        return _waits(trace).within(steps["start_ns"], steps["end_ns"]).astype(np.float64)
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


def _kernels(trace: Trace, numbers: Ids, computing: Ids) -> dict[str, tuple[float, float]]:
    """The longest work by name: how many a step, and the median duration in ms."""
    events = trace.events
    rows = computing[_positions(events["step"][computing], numbers) >= 0]
    names = events.text("name")
    on_device = trace["tracks"]["device"][events["track"][rows]] >= 0
    duration = np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows])
    codes = names.codes[rows]
    order = np.lexsort((duration, codes))
    codes, duration = codes[order], duration[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(np.append(starts, len(codes)))
    total = np.add.reduceat(duration, starts) if len(starts) else np.zeros(0)
    median = duration[starts + counts // 2] if len(starts) else total
    longest = np.argsort(-total, kind="stable")[:_MOST_KERNELS]
    return {
        names.values[codes[starts[row]]][:_NAME_LETTERS]: (
            round(float(counts[row] / len(numbers)), 3), round(float(median[row] / 1e6), 6),
        )
        for row in longest
    }  # fmt: skip


def _operators(trace: Trace) -> Ids:
    """The operators of the CPU's threads; those that wait for communication do not work."""
    events = trace.events
    waits = events.text("name").where(is_communication_wait)
    return np.flatnonzero(events.text("category").mask("cpu_op") & ~waits)


def _positions(steps: Ids, numbers: Ids) -> Ids:
    """The position of each step among `numbers`, -1 where it is none of them."""
    if not len(numbers):
        return np.full(len(steps), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.minimum(np.searchsorted(numbers[order], steps), len(numbers) - 1)
    return np.where(numbers[order][place] == steps, order[place], -1).astype(np.int64)


def _host(trace: Trace) -> str:
    """The machine's name as the capture or the trace says it."""
    capture, properties = trace.metadata.capture, trace.metadata.properties
    for source, key in ((capture, "host"), (properties, "hostname"), (properties, "host_name")):
        if isinstance(source.get(key), str):
            return str(source[key])
    return ""


def _ms(values: Any) -> list[float]:
    return [round(float(value) / 1e6, 4) for value in values]
