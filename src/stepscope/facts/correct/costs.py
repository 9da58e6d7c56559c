"""What recording costs in each part of a step, from recorded and unrecorded steps of one run.

Where steps do different work, as with an evaluation or without, a median over all of them is of
none. The recorder sorts unrecorded steps by their CPU time into kinds; a recorded step is of the
kind that leaves a possible cost for each of its events.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Mask, Rows, Times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.trace.recorded_steps import usual_of_places
from stepscope.trace.row_order import running_span
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

    Parts, such as `forward` and `backward`, were timed in the same process with and without recording: the
    capture has unrecorded steps. On a CPU the difference is of CPU time, which grows no longer where another
    process preempts this one; with a device it is of elapsed time, since a step that waits for the device may
    cost nothing more. Of JAX, and of captures of earlier versions, only the whole step is known.
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

    With a device, parts vary by how long they wait for it.
    """
    if in_jax(trace) or device_work(trace).any():
        return {}
    parts = trace.metadata.capture["unrecorded_steps"].get("parts") or {}
    return {
        name: float(times["p90_ns"] - times["p10_ns"])
        for name, times in parts.items()
        if times.get("p10_ns") is not None and times.get("p90_ns") is not None
    }


def error_of_median(steps: Mapping[str, Any]) -> float:
    """How far the median of timed steps may be from that of many more, as a share of it.

    Two standard errors, with the deviation of a normal distribution of these percentiles, which
    `unrecorded_steps` of a capture has. On a machine that others use it is large: the core's speed
    changes from step to step. It is of CPU time, and in JAX, where other threads do the work, of
    elapsed time.
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


# -- recorded steps with the unrecorded ones that do the same work

_USUAL_NS = 1_500.0  # that recording costs per event of PyTorch: 1 to 2 µs (benchmarks/recording_cost.py)
_USUAL_OF_XLA = 200.0  # 0.1 to 0.3 µs (benchmarks/capture_jax.py)
_LEAST_NS = 200.0  # that an operator of PyTorch takes for each of its events, without recording
_LEAST_OF_XLA = 20.0  # that one of JAX takes
# Costs that are tried: from a 30th of the usual one to 30 times as much, each 12 % more; how far the
# usual one counts, in e-folds for e-folds of a step's length.
_RANGE, _TRIED, _PRIOR = 30.0, 61, 0.05
_MOST_TIMES = 100.0  # that a recorded step is as long as an unrecorded one
_UNLIKELY = 5.0  # e-folds: more than steps of a kind differ
_ESTIMATE = 0.5  # e-folds by which a kind may be farther than the estimate
_UNUSUAL = 3.0  # times the events of the step with the fewest
_TWICE, _MUCH = 2, 0.1  # of the unrecorded steps, and of their time: less is noise, or matters little
_ACTIVITY = "stepscope."  # what ranges of activities begin with: `stepscope.evaluation: f (file:1)`
Facts = Mapping[str, Any]


class StepGroup(NamedTuple):
    """Recorded steps that do the same work."""

    chosen: Mask  # which of the steps, shape (steps,)
    # their times, as `recorded_steps` and `unrecorded_steps` of a capture; `unrecorded` is None if no
    # unrecorded step does as much
    recorded: Facts
    unrecorded: Facts | None

    def of_group(self, trace: Trace) -> Trace:
        """The trace with the steps of the group and their times only."""
        capture = {**trace.metadata.capture, "recorded_steps": self.recorded}
        capture["unrecorded_steps"] = self.unrecorded or capture["unrecorded_steps"]
        return trace.with_table(trace["steps"].take(self.chosen)).with_metadata(capture=capture)


def step_groups(trace: Trace, events: Floats) -> list[StepGroup]:
    """Groups of recorded steps, each with times of unrecorded steps that do the same work.

    One group of all where the capture has no times of single steps, as of earlier versions.
    `events` has the number of recorded events of each step, shape (steps,).
    """
    recorded = trace.metadata.capture.get("recorded_steps") or {}
    unrecorded = trace.metadata.capture["unrecorded_steps"]
    each = recorded.get("each")
    if not each or len(each["cpu_ns"]) != len(events):
        return [StepGroup(np.ones(len(events), np.bool_), recorded, unrecorded)]
    kinds = unrecorded.get("kinds") or [unrecorded]
    known = [facts.get("cpu_ns") or facts.get("process_cpu_ns") or facts["median_ns"] for facts in kinds]
    truth = np.tile(np.array(known, np.float64), (len(events), 1))
    estimated = truth[:, :1] + _activities_ns(trace)[:, None]
    kind = _kinds_of(
        np.array(each["cpu_ns"], np.float64), events, np.hstack([truth, estimated]), in_jax(trace)
    )
    if len(kinds) == 1 and (kind == 0).all():
        return [StepGroup(np.ones(len(events), np.bool_), recorded, unrecorded)]
    return [_group(kind == code, recorded, kinds[code] if code >= 0 else None) for code in np.unique(kind)]


def _kinds_of(work: Floats, events: Floats, truth: Floats, jax: bool) -> Rows:
    """The kind of each recorded step, -1 for what no unrecorded step does, shape (steps,).

    An event costs the same in all steps: the cost counts with which the `work` of all steps, CPU time in
    ns, is without it closest to a kind. `truth` has what a step of each kind takes unrecorded, shape
    (steps, kinds + 1); last, what it takes by the other times of its activities, inf if unknown.
    """
    usual, least = (_USUAL_OF_XLA, _LEAST_OF_XLA) if jax else (_USUAL_NS, _LEAST_NS)
    each = usual * np.geomspace(1 / _RANGE, _RANGE, _TRIED)[:, None]
    left = np.maximum(work - each * events, work / _MOST_TIMES)
    far = np.abs(np.log(left)[:, :, None] - np.log(truth))
    impossible = ~(truth >= least * events[:, None])
    far = far + _UNLIKELY * impossible
    far[..., -1] += _ESTIMATE  # elapsed times of a run, whose first ones may be longer
    unlikely = far.min(axis=2).sum(axis=1) + _PRIOR * np.abs(np.log(each[:, 0] / usual))
    unseen = impossible[:, :-1].all(axis=1) & (events > _UNUSUAL * events.min())
    best = far[unlikely.argmin()].argmin(axis=1)
    return np.where(unseen | (best == truth.shape[1] - 1), -1, best)


def _group(chosen: Mask, recorded: Facts, unrecorded: Facts | None) -> StepGroup:
    each = recorded["each"]
    cpu, elapsed = (float(np.median(np.array(each[name])[chosen])) for name in ("cpu_ns", "elapsed_ns"))
    parts = {
        name: {**recorded["parts"][name], "cpu_ns": float(np.median(np.array(times)[chosen]))}
        for name, times in each["parts"].items()
    }
    facts = {**recorded, "median_ns": elapsed, "parts": parts}
    facts["cpu_ns" if parts else "process_cpu_ns"] = cpu
    return StepGroup(chosen, facts, unrecorded)


def missing_kind(groups: list[StepGroup], unrecorded: Facts) -> dict[str, Any]:
    """Unrecorded steps that do what no recorded one does, if they take much of the time; else empty.

    They are `missing_share` of the steps, and take `missing_ns`.
    """
    kinds = unrecorded.get("kinds") or []
    seen = [group.unrecorded for group in groups]
    total_ns = sum(kind["count"] * kind["median_ns"] for kind in kinds)
    unseen = [kind for kind in kinds if kind not in seen]
    most = max(unseen, key=lambda kind: kind["count"] * kind["median_ns"], default=None)
    if most is None or most["count"] < _TWICE or most["count"] * most["median_ns"] < _MUCH * total_ns:
        return {}
    share = most["count"] / sum(kind["count"] for kind in kinds)
    return {"missing_share": round(share, 4), "missing_ns": most["median_ns"]}


def estimated_cost(trace: Trace, events: Floats, rate: float) -> dict[str, float]:
    """The cost of recording a step of a trace whose steps have no unrecorded ones, ns, by part.

    The run has timed its evaluations, so what their recording costs is known from the others; else
    each event costs what it does in other steps.

    Args:
        events: of each step, shape (steps,).
        rate: of an event in the other steps, ns.
    """
    lengths = trace["steps"]["end_ns"] - trace["steps"]["start_ns"]
    activities = _activities_ns(trace)
    if not np.isfinite(activities).all():
        return {WHOLE: rate * float(np.median(events))}
    usual_ns = float(trace.metadata.capture["unrecorded_steps"]["median_ns"])
    return {WHOLE: max(float(np.median(lengths - activities)) - usual_ns, 0.0)}


def _activities_ns(trace: Trace) -> Floats:
    """What the activities of each step take in the rest of the run, ns; inf if one is not known."""
    usual = usual_of_places(trace.metadata.capture)
    names = trace.events.text("name")
    rows = np.flatnonzero(names.where(lambda name: name.startswith(_ACTIVITY) and name.endswith(")")))
    start, steps = trace.events["start_ns"][rows], trace["steps"]
    step = running_span(steps["start_ns"], steps["end_ns"], start)
    inside = step >= 0
    known = [usual.get(str(names[int(row)]).partition(": ")[2], np.inf) for row in rows[inside]]
    spent = np.bincount(step[inside], np.array(known, np.float64), len(steps))
    return np.where(spent > 0, spent, np.inf)
