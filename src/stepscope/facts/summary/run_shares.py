"""What part of the whole run was training steps, evaluation, checkpointing and so on.

A run may have several trainings, one after the other: a sweep, folds, a fine-tuning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from stepscope.base.numbers import duration, percent
from stepscope.facts.summary.facts import RunPlace, RunShares, RunTraining
from stepscope.trace.recorded_steps import milliseconds

_ALIKE = 2  # times as long a step
_LEAST_TRAINING = 0.005  # of the run
_MOST_SHOWN = 8  # trainings in the text
Facts = Mapping[str, Any]
_TRAINING = "training_steps"
_WORDS = {
    "start_up": "start-up",
    "training_steps": "training steps",
    "data_preparation": "data preparation",
    "rollout": "rollout or generation",
}
_LEAST, _LEAST_PLACE = 0.005, 0.02


def grouped_trainings(found: Sequence[Facts], elapsed_ns: int) -> list[RunTraining]:
    """Trainings as the manifest has them; those alike that follow each other are one."""
    groups = _runs(found, _is_like)
    if len(groups) > _MOST_SHOWN:
        groups = _runs(found, _is_at_same_place)
    firsts = accumulate((len(group) for group in groups), initial=1)
    return [_group(first, group, elapsed_ns) for first, group in zip(firsts, groups, strict=False)]


def _runs(found: Sequence[Facts], is_like: Callable[[Facts, Facts], bool]) -> list[list[Facts]]:
    """Trainings that follow each other and are like the first of them."""
    groups: list[list[Facts]] = []
    for training in found:
        if groups and is_like(groups[-1][0], training):
            groups[-1].append(training)
        else:
            groups.append([training])
    return groups


def _is_like(first: Facts, other: Facts) -> bool:
    shorter, longer = sorted([first["step_ns"], other["step_ns"]])
    return _is_at_same_place(first, other) and longer <= _ALIKE * shorter


def _is_at_same_place(first: Facts, other: Facts) -> bool:
    return all(first[key] == other[key] for key in ("class", "file", "line"))


def _group(first: int, group: Sequence[Facts], elapsed_ns: int) -> RunTraining:
    steps = sum(training["steps"] for training in group)
    return RunTraining(
        first=first,
        count=len(group),
        optimizer=group[0]["class"],
        function=group[0]["function"],
        file=group[0]["file"],
        line=group[0]["line"],
        steps=steps,
        step_ms=sum(training["steps"] * training["step_ns"] for training in group) / max(steps, 1) / 1e6,
        share=sum(training["elapsed_ns"] for training in group) / elapsed_ns,
        first_optimizer=group[0]["first_optimizer"],
        recorded=any(training["recorded"] for training in group),
    )


def training_lines(trainings: Sequence[RunTraining]) -> Iterator[str]:
    """The trainings as text, the longest ones; nothing where the run has but one."""
    shown = [training for training in trainings if training.share >= _LEAST_TRAINING or training.recorded]
    if sum(training.count for training in shown) < 2:
        return
    longest = sorted(shown, key=lambda training: -training.share)[:_MOST_SHOWN]
    yield f"  {sum(training.count for training in trainings)} trainings, one after the other:"
    for training in shown:
        if training in longest or training.recorded:
            yield f"  {percent(training.share)} {_training(training)}"


def _training(training: RunTraining) -> str:
    last = training.first + training.count - 1
    number = f"training {training.first}" + (f" to {last}" if training.count > 1 else "")
    where = f"{training.function}, {PurePath(training.file).name}:{training.line}"
    steps = f"{training.steps:,} steps of {milliseconds(training.step_ms * 1e6)}"
    recorded = ", recorded" if training.recorded else ""
    return f"{number}: {training.optimizer}.step in {where}, {steps}{recorded}"


def run_shares(capture: Mapping[str, Any]) -> RunShares | None:
    """The shares of the run that recorded a trace; None where they were not measured."""
    found = capture.get("run_shares")
    if not found or found["elapsed_ns"] <= 0:
        return None
    elapsed = found["elapsed_ns"]
    shares = {name: spent / elapsed for name, spent in found["stages_ns"].items() if spent}
    return RunShares(
        seconds=elapsed / 1e9,
        ended=found["ended"],
        steps=found["steps"],
        shares=dict(sorted(shares.items(), key=lambda stage: -stage[1])),
        outside_of_steps=1 - shares.get(_TRAINING, 0.0),
        data_loading=found["data_loading_ns"] / elapsed,
        **{
            name: None if (spent := found.get(f"{name}_ns")) is None else spent / elapsed
            for name in ("first_step", "torch_imported")
        },
        places=[_place(place, elapsed) for place in found["places"]],
        trainings=grouped_trainings(found.get("trainings", []), elapsed),
    )


def _place(place: Mapping[str, Any], elapsed_ns: int) -> RunPlace:
    facts = {name: place[name] for name in ("stage", "function", "file", "line", "count")}
    return RunPlace(**facts, share=place["ns"] / elapsed_ns)


def run_lines(run: RunShares) -> Iterator[str]:
    """The shares as text, a sentence a line."""
    shown = {name: share for name, share in run.shares.items() if share >= _LEAST}
    whole = "Of the run" if run.ended else "Of the run so far"
    parts = ", ".join(f"{_WORDS.get(name, name)} {percent(shown[name])}" for name in shown)
    yield f"{whole} ({duration(run.seconds)}): {parts}"
    if details := list(_details(run)):
        yield f"  {', '.join(details)}"
    for place in run.places:
        if place.share >= _LEAST_PLACE:
            where = f"{place.function}, {PurePath(place.file).name}:{place.line}"
            stage = _WORDS.get(place.stage, place.stage)
            yield f"  {percent(place.share)} {stage}: {where}, {place.count:,} times"
    yield from training_lines(run.trainings)


def _details(run: RunShares) -> Iterator[str]:
    if run.outside_of_steps >= _LEAST_PLACE:
        text = f"{percent(run.outside_of_steps)} of the run lies outside of training steps"
        yield text + _without_start_up(run)
    if run.data_loading >= _LEAST_PLACE:
        yield f"{percent(run.data_loading)} is training steps that wait for data"
    if run.first_step and run.steps > 1 and run.first_step >= _LEAST_PLACE:
        mean = run.shares.get(_TRAINING, 0.0) / run.steps
        if run.first_step > 3 * mean:
            yield f"{percent(run.first_step)} is the first step"


def _without_start_up(run: RunShares) -> str:
    """The same for the rest of a run whose start is a visible part of it."""
    start_up, trained = run.shares.get("start_up", 0.0), run.shares.get(_TRAINING, 0.0)
    if start_up < _LEAST_PLACE or start_up == 1:
        return ""
    return f" ({percent(1 - trained / (1 - start_up))} without start-up)"
