"""What part of the whole run was training steps, evaluation, checkpointing and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from stepscope.summary.facts import RunPlace, RunShares
from stepscope.summary.numbers import percent
from stepscope.summary.run_trainings import grouped_trainings, training_lines

_TRAINING = "training_steps"
_WORDS = {
    "start_up": "start-up", "training_steps": "training steps",
    "data_preparation": "data preparation", "rollout": "rollout or generation",
}  # fmt: skip
_LEAST, _LEAST_PLACE = 0.005, 0.02


def run_shares(capture: Mapping[str, Any]) -> RunShares | None:
    """The shares of the run that recorded a trace.

    Args:
        capture: the manifest of a capture.

    Returns:
        None where they were not measured.
    """
    found = capture.get("run_shares")
    if not found or found["elapsed_ns"] <= 0:
        return None
    elapsed = found["elapsed_ns"]
    shares = {name: spent / elapsed for name, spent in found["stages_ns"].items() if spent}
    return RunShares(
        seconds=elapsed / 1e9,
        ended=found["ended"],
        steps=found["steps"],
        shares=dict(sorted(shares.items(), key=lambda one: -one[1])),
        outside_of_steps=1 - shares.get(_TRAINING, 0.0),
        data_loading=found["data_loading_ns"] / elapsed,
        first_step=_share(found.get("first_step_ns"), elapsed),
        torch_imported=_share(found.get("torch_imported_ns"), elapsed),
        places=[_place(place, elapsed) for place in found["places"]],
        trainings=grouped_trainings(found.get("trainings", []), elapsed),
    )


def _share(spent_ns: int | None, elapsed_ns: int) -> float | None:
    return None if spent_ns is None else spent_ns / elapsed_ns


def _place(place: Mapping[str, Any], elapsed_ns: int) -> RunPlace:
    facts = {name: place[name] for name in ("stage", "function", "file", "line", "count")}
    return RunPlace(**facts, share=place["ns"] / elapsed_ns)


def run_lines(run: RunShares) -> Iterator[str]:
    """The shares as text, a sentence a line."""
    shown = {name: share for name, share in run.shares.items() if share >= _LEAST}
    whole = "Of the run" if run.ended else "Of the run so far"
    parts = ", ".join(f"{_WORDS.get(name, name)} {percent(shown[name])}" for name in shown)
    yield f"{whole} ({_seconds(run.seconds)}): {parts}"
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


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
