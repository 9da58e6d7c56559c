"""What recording costs in each part of a step, from recorded and unrecorded steps of one run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.base.arrays import Times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.trace.trace import Metadata, Trace

WHOLE = "rest"
OTHER_WORK = 1.3  # of the CPU time of recorded steps, which holds the cost of recording, too
_CHANCE_NS = 500_000  # so much of one step's work may run in another, as XLA's threads work behind
_BETWEEN_PERCENTILES = 2.563  # deviations of a normal distribution from the 10th to the 90th
_OF_MEDIAN = 1.253  # its standard error as a multiple of that of the mean
_CPU_TIMES = ("cpu_ns", "cpu_p10_ns", "cpu_p90_ns")
MOST_NS = 10_000  # per event: recording costs 1 to 6 µs (benchmarks/recording_cost.py)
_MOST_NS_OF_XLA = 300  # XLA's own on a CPU: 0.1 to 0.3 µs (benchmarks/capture_jax.py)


def part_costs(trace: Trace) -> dict[str, float]:
    """The cost of recording per step, ns, by part; `rest` has what is in none of the others.

    Parts, such as `forward` and `backward`, were timed in the same process with and without
    recording. On a CPU the difference is of CPU time, which grows no longer where another
    process preempts this one; with a device it is of elapsed time, since a step that waits for
    the device may cost nothing more. Of JAX, and of captures of earlier versions, only the whole
    step is known.

    Args:
        trace: an annotated trace of a capture with unrecorded steps.
    """
    if in_jax(trace):
        return {WHOLE: _cost_in_jax(trace)}
    recorded = trace.metadata.capture.get("recorded_steps")
    unrecorded = trace.metadata.capture["unrecorded_steps"]
    if not recorded or not recorded.get("parts") or not unrecorded.get("parts"):
        return {WHOLE: max(median_step_ns(trace) - unrecorded["median_ns"], 0.0)}
    clock = "median_ns" if device_work(trace).any() else "cpu_ns"
    return {
        name: max(float(times[clock] - unrecorded["parts"][name][clock]), 0.0)
        for name, times in recorded["parts"].items()
        if name in unrecorded["parts"]
    }


def unrecorded_spreads(trace: Trace) -> dict[str, float]:
    """From the 10th to the 90th percentile of unrecorded steps, ns, by part; known ones only.

    Args:
        trace: as for `part_costs`. With a device, parts vary by how long they wait for it.
    """
    if in_jax(trace) or device_work(trace).any():
        return {}
    parts = trace.metadata.capture["unrecorded_steps"].get("parts") or {}
    return {
        name: float(times["p90_ns"] - times["p10_ns"]) for name, times in parts.items() if "p90_ns" in times
    }


def error_of_median(steps: Mapping[str, Any]) -> float:
    """How far the median of timed steps may be from that of many more, as a share of it.

    Two standard errors, with the deviation of a normal distribution of these percentiles. On a
    machine that others use it is large: the core's speed changes from step to step. It is of CPU
    time, and in JAX, where other threads do the work, of elapsed time.

    Args:
        steps: as `unrecorded_steps` of a capture has them.
    """
    by_other_threads = steps.get("cpu_ns", 0) is None
    names = ("median_ns", "p10_ns", "p90_ns") if by_other_threads else _CPU_TIMES
    middle, low, high = (steps.get(name) for name in names)
    if not middle or low is None or high is None:
        return 0.0
    deviation = (high - low) / _BETWEEN_PERCENTILES
    return float(2 * _OF_MEDIAN * deviation / steps["count"] ** 0.5 / middle)


def median_step_ns(trace: Trace) -> float:
    """The median length of the steps, ns: until threads of XLA, or a device, end their work."""
    return float(np.median(_lengths(trace)))


def mean_step_ns(trace: Trace) -> float:
    return float(_lengths(trace).mean())


def _lengths(trace: Trace) -> Times:
    steps = trace["steps"]
    by_window = in_jax(trace) or device_work(trace).any()
    return step_lengths(steps) if by_window else steps["end_ns"] - steps["start_ns"]


def in_jax(trace: Trace) -> bool:
    """Whether a capture is of JAX, whose threads do the work of a step and record it."""
    return trace.metadata.framework == "jax"


def _cost_in_jax(trace: Trace) -> float:
    """How much longer recorded steps of JAX are, ns; no more than their CPU time grew.

    Recorded steps wait for each other, so a loop that runs ahead of its devices may be slower for
    another reason than recording. Recording itself takes CPU time.
    """
    recorded = trace.metadata.capture.get("recorded_steps") or {}
    unrecorded = trace.metadata.capture["unrecorded_steps"]
    longer = median_step_ns(trace) - float(unrecorded["median_ns"])
    before, after = (steps.get("process_cpu_ns") for steps in (unrecorded, recorded))
    grew = longer if before is None or after is None else after - before
    return max(min(longer, float(grew)), 0.0)


def most_of_event(trace: Trace) -> float:
    """What recording one event can cost, ns; a step that differs by more has another cause.

    In JAX on a CPU that is usual: while the profiler keeps events, and after it has freed them, the
    allocator of the process takes other amounts of memory from the system, and a page that is
    new costs as much as several events.
    """
    return _MOST_NS_OF_XLA if in_jax(trace) and not device_work(trace).any() else MOST_NS


def page_faults_ns(trace: Trace) -> float:
    """What page faults cost that recorded steps had and unrecorded ones had not, ns per step.

    In JAX none is removed: which of its operations got a page is not known, nor in which part.
    """
    found = page_faults(trace.metadata.capture)
    each = (trace.metadata.capture.get("recorded_steps") or {}).get("page_fault_ns")
    if not found or not each or in_jax(trace):
        return 0.0
    return float(max(found["recorded_page_faults"] - found["unrecorded_page_faults"], 0) * each)


def page_faults(capture: Mapping[str, Any]) -> dict[str, int]:
    """Page faults per recorded and per unrecorded step, where they were counted."""
    steps = {kind: capture.get(f"{kind}_steps") or {} for kind in ("recorded", "unrecorded")}
    counted = all(isinstance(times.get("page_faults"), int) for times in steps.values())
    return {f"{kind}_page_faults": times["page_faults"] for kind, times in steps.items() if counted}


def why_unknown(metadata: Metadata) -> str:
    """Why the cost of a capture's recording is not known; empty if its metadata show none."""
    if metadata.world_size > 1:
        return "ranks wait for each other, so the cost of one is not the cost of the job"
    if not metadata.capture.get("unrecorded_steps"):
        return "no unrecorded steps were timed in this run"
    return ""


def other_work(trace: Trace) -> str:
    """How much more the steps after the recording did; empty if they did the same.

    Steps that do different work, as every third with an evaluation, are compared by kind. A thread
    that waits for a device may spend that much CPU time on it.
    """
    recorded = trace.metadata.capture.get("recorded_steps") or {}
    unrecorded = trace.metadata.capture["unrecorded_steps"]
    if recorded.get("each") and unrecorded.get("kinds"):
        return ""
    less, more = recorded.get("process_cpu_ns") or 0, unrecorded.get("process_cpu_ns") or 0
    waiting_ns = median_step_ns(trace) if device_work(trace).any() else 0.0
    if not less or more <= max(OTHER_WORK * less, less + _CHANCE_NS, waiting_ns):
        return ""
    return (
        f"the {unrecorded['count']} steps that followed took {more / less:.1f} times as much CPU "
        f"time ({more / 1e6:.1f} ms), so the recorded ones are not typical; `stepscope run "
        "--warmup N` records later steps"
    )
