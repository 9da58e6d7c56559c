"""Where work outside of training begins: evaluation, saving, blocks without gradients."""

from __future__ import annotations

import re

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.summary.facts import StagePlace
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import OUTSIDE_STAGES, STAGES

_RANGE = re.compile(r"^stepscope\.(?:evaluation|checkpointing|block): (.*) \((.*):(\d+)\)$")
_OUTSIDE = [STAGES.index(stage) for stage in OUTSIDE_STAGES]


def places_of(selected: SelectedSteps) -> list[StagePlace]:
    """The places that a capture marked, the longest first."""
    events = selected.trace.events
    named = events.text("name").where(lambda name: _RANGE.match(name) is not None)
    rows = np.flatnonzero(named & selected.chosen_events & on_host(selected.trace))
    trains = (events["stage"] >= 0) & ~np.isin(events["stage"], _OUTSIDE)
    around = inherit(events["parent"], np.where(named, np.arange(len(events)), -1))
    rows = rows[~np.isin(rows, around[trains])]  # a teacher's forward pass is part of training
    start = events["start_ns"][rows]
    steps = Intervals(selected.steps["start_ns"], selected.steps["end_ns"])
    inside = steps.within(start, start + events["duration_ns"][rows])  # a block may outlast them
    spent: dict[tuple[str, str], list[int]] = {}
    for row, time in zip(rows.tolist(), inside.tolist(), strict=True):
        key = (events.text("stage")[row] or "", events.text("name")[row] or "")
        spent.setdefault(key, []).append(time)
    found = [_place(selected, *key, times) for key, times in spent.items()]
    return sorted(found, key=lambda place: -place.ms)


def _place(selected: SelectedSteps, stage: str, name: str, times: list[int]) -> StagePlace:
    said = _RANGE.match(name)
    function, file, line = said.groups() if said else ("", "", "0")
    each, share = sum(times) / selected.count / 1e6, sum(times) / selected.length_ns
    return StagePlace(stage, function, file, int(line), each, share, len(times) / selected.count)
