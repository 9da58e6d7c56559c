"""Recorded steps with the unrecorded ones that do the same work: with an evaluation, or without.

What recording costs is a difference between recorded and unrecorded steps. Where steps do different
work, a median over all of them is of none. The recorder sorts unrecorded steps by their CPU time
into kinds; a recorded step is of the kind that leaves a possible cost for each of its events.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Mask, Rows
from stepscope.facts.correct.costs import WHOLE, in_jax
from stepscope.facts.correct.gaps import Stretches
from stepscope.trace.trace import Trace

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
    """Recorded steps that do the same work.

    Attributes:
        chosen: which of the steps, shape (steps,).
        recorded, unrecorded: their times, as `recorded_steps` and `unrecorded_steps` of a capture;
            `unrecorded` is None if no unrecorded step does as much.
    """

    chosen: Mask
    recorded: Facts
    unrecorded: Facts | None

    def of_group(self, trace: Trace) -> Trace:
        """The trace with the steps of the group and their times only."""
        capture = {**trace.metadata.capture, "recorded_steps": self.recorded}
        capture["unrecorded_steps"] = self.unrecorded or capture["unrecorded_steps"]
        steps = trace["steps"].take(self.chosen)
        return trace.with_table(steps).with_metadata(capture=capture)


def step_groups(trace: Trace, events: Floats) -> list[StepGroup]:
    """Groups of recorded steps, each with times of unrecorded steps that do the same work.

    One group of all where the capture has no times of single steps, as of earlier versions.

    Args:
        trace: an annotated trace of a capture with unrecorded steps.
        events: recorded events of each step, shape (steps,).
    """
    recorded = trace.metadata.capture.get("recorded_steps") or {}
    unrecorded = trace.metadata.capture["unrecorded_steps"]
    each = recorded.get("each")
    if not each or len(each["cpu_ns"]) != len(events):
        return [StepGroup(np.ones(len(events), np.bool_), recorded, unrecorded)]
    kinds = unrecorded.get("kinds") or [unrecorded]
    truth = np.tile([_work_ns(facts) for facts in kinds], (len(events), 1))
    estimated = truth[:, :1] + _activities_ns(trace)[:, None]
    kind = _kinds_of(
        np.array(each["cpu_ns"], np.float64), events, np.hstack([truth, estimated]), in_jax(trace)
    )
    if len(kinds) == 1 and (kind == 0).all():
        return [StepGroup(np.ones(len(events), np.bool_), recorded, unrecorded)]
    return [_group(kind == code, recorded, kinds[code] if code >= 0 else None) for code in np.unique(kind)]


def _kinds_of(work: Floats, events: Floats, truth: Floats, jax: bool) -> Rows:
    """The kind of each recorded step, -1 for what no unrecorded step does, shape (steps,).

    An event costs the same in all steps: the cost counts with which all steps, without it, are
    closest to a kind.

    Args:
        work: CPU time of recorded steps, ns, shape (steps,).
        events: in them, shape (steps,).
        truth: what a step of each kind takes unrecorded, ns, shape (steps, kinds + 1); last, what
            it takes by the other times of its activities, inf where these are not known.
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


def _work_ns(facts: Facts) -> float:
    return float(facts.get("cpu_ns") or facts.get("process_cpu_ns") or facts["median_ns"])


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
    """Unrecorded steps that do what no recorded one does, if they take much of the time.

    Returns:
        `missing_share` of the steps, and how long they take, `missing_ns`; empty if there are none.
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


def estimated_cost(
    trace: Trace, group: StepGroup, events: Floats, rate: float, usual: Facts
) -> dict[str, float]:
    """The cost of recording a step of a group that has no unrecorded ones, ns, by part.

    The run has timed its evaluations, so what their recording costs is known from the others; else
    each event costs what it does in other steps.

    Args:
        events: of each step of the group, shape (n,).
        rate: of an event in the other steps, ns.
        usual: of the unrecorded steps.
    """
    of_group = group.of_group(trace)
    lengths = of_group["steps"]["end_ns"] - of_group["steps"]["start_ns"]
    activities = _activities_ns(of_group)
    if not np.isfinite(activities).all():
        return {WHOLE: rate * float(np.median(events))}
    return {WHOLE: max(float(np.median(lengths - activities)) - float(usual["median_ns"]), 0.0)}


def _activities_ns(trace: Trace) -> Floats:
    """What the activities of each step take in the rest of the run, ns; inf if one is not known."""
    run = trace.metadata.capture.get("run_shares") or {}
    usual = {
        f"{place['function']} ({place['file']}:{place['line']})": place.get("median_ns")
        for place in run.get("places", ())
    }
    names = trace.events.text("name")
    rows = np.flatnonzero(names.where(lambda name: name.startswith(_ACTIVITY) and name.endswith(")")))
    start, steps = trace.events["start_ns"][rows], trace["steps"]
    step = np.searchsorted(steps["start_ns"], start, side="right") - 1
    inside = (step >= 0) & (start < steps["end_ns"][np.maximum(step, 0)])
    known = [usual.get(str(names[int(row)]).partition(": ")[2]) or np.inf for row in rows[inside]]
    spent = np.bincount(step[inside], np.array(known, np.float64), len(steps))
    return np.where(spent > 0, spent, np.inf)


def only(stretches: Stretches, chosen: Mask) -> Stretches:
    """The stretches with those of chosen steps in parts, numbered among these."""
    number = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)[stretches.step]
    part = np.where(number >= 0, stretches.part, -1)
    return stretches._replace(part=part, step=number)
