"""The trainings of a run that has several, one after the other: a sweep, folds, a fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from stepscope.summary.facts import RunTraining
from stepscope.summary.numbers import percent
from stepscope.trace.recorded_steps import milliseconds

_ALIKE = 2  # times as long a step
_LEAST = 0.005  # of the run
_MOST_SHOWN = 8

Facts = Mapping[str, Any]


def grouped_trainings(found: Sequence[Facts], elapsed_ns: int) -> list[RunTraining]:
    """Trainings as the manifest has them; those alike that follow each other are one.

    Args:
        found: the trainings of the manifest.
        elapsed_ns: length of the run.
    """
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


def _is_like(one: Facts, other: Facts) -> bool:
    shorter, longer = sorted([one["step_ns"], other["step_ns"]])
    return _is_at_same_place(one, other) and longer <= _ALIKE * shorter


def _is_at_same_place(one: Facts, other: Facts) -> bool:
    return all(one[key] == other[key] for key in ("class", "file", "line"))


def _group(first: int, group: Sequence[Facts], elapsed_ns: int) -> RunTraining:
    steps = sum(one["steps"] for one in group)
    return RunTraining(
        first=first,
        count=len(group),
        optimizer=group[0]["class"],
        function=group[0]["function"],
        file=group[0]["file"],
        line=group[0]["line"],
        steps=steps,
        step_ms=sum(one["steps"] * one["step_ns"] for one in group) / max(steps, 1) / 1e6,
        share=sum(one["elapsed_ns"] for one in group) / elapsed_ns,
        first_optimizer=group[0]["first_optimizer"],
        recorded=any(one["recorded"] for one in group),
    )


def training_lines(trainings: Sequence[RunTraining]) -> Iterator[str]:
    """The trainings as text, the longest ones; nothing where the run has but one."""
    shown = [one for one in trainings if one.share >= _LEAST or one.recorded]
    if sum(one.count for one in shown) < 2:
        return
    longest = sorted(shown, key=lambda one: -one.share)[:_MOST_SHOWN]
    yield f"  {sum(one.count for one in trainings)} trainings, one after the other:"
    for one in shown:
        if one in longest or one.recorded:
            yield f"  {percent(one.share)} {_training(one)}"


def _training(one: RunTraining) -> str:
    last = one.first + one.count - 1
    number = f"training {one.first}" + (f" to {last}" if one.count > 1 else "")
    where = f"{one.function}, {PurePath(one.file).name}:{one.line}"
    steps = f"{one.steps:,} steps of {milliseconds(one.step_ms * 1e6)}"
    recorded = ", recorded" if one.recorded else ""
    return f"{number}: {one.optimizer}.step in {where}, {steps}{recorded}"
