"""Where work outside of training is: evaluation, saving, blocks without gradients, the rest.

A capture marks the first three with ranges. Of the rest of `other`, it samples the line that the
training loop executes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.arrays import Times
from stepscope.ingest.recorded.samples_json import CATEGORY
from stepscope.summary.facts import StagePlace
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import OUTSIDE_STAGES, STAGES

_RANGE = re.compile(r"^stepscope\.(?:evaluation|checkpointing|block): (.*) \((.*):(\d+)\)$")
_SAMPLED = re.compile(r"^(.*) \((.*):(\d+)\)$")
_FEWEST = 3  # samples of a function
_OUTSIDE = [STAGES.index(stage) for stage in OUTSIDE_STAGES]


def places_of(selected: SelectedSteps) -> list[StagePlace]:
    """The places that a capture marked or sampled, the longest first."""
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
    marked = Intervals(start, start + events["duration_ns"][rows])
    return sorted([*found, *_sampled(selected, marked)], key=lambda place: -place.ms)


def _sampled(selected: SelectedSteps, marked: Intervals) -> list[StagePlace]:
    """Functions that take the time in `other` which no range marks, with their commonest line."""
    runs = selected.rows_of(selected.trace["stages"])
    runs = runs.take(runs.text("stage").mask("other"))
    left = Intervals(runs["start_ns"], runs["end_ns"]).minus(marked)
    lines: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for name in _samples_in(selected, left):
        if found := _SAMPLED.match(name):
            lines[found[1], found[2]][int(found[3])] += 1
    total = sum(map(Counter.total, lines.values()))
    return [
        StagePlace(
            "other", *key, of_line.most_common(1)[0][0],
            of_line.total() / total * left.total() / selected.count / 1e6,
            of_line.total() / total * left.total() / selected.length_ns, 0.0,
        )
        for key, of_line in lines.items()
        if of_line.total() >= _FEWEST
    ]  # fmt: skip


def _samples_in(selected: SelectedSteps, spans: Intervals) -> list[str]:
    """Names of the samples of the rank's threads in some spans of time."""
    instants = selected.trace["instants"]
    rank = selected.trace["tracks"]["rank"][instants["track"]]
    time: Times = instants["time_ns"]
    chosen = instants.text("category").mask(CATEGORY) & (rank == selected.rank)
    chosen &= spans.within(time, time + 1) > 0
    return [name or "" for name in instants.text("name").take(np.flatnonzero(chosen))]


def _place(selected: SelectedSteps, stage: str, name: str, times: list[int]) -> StagePlace:
    said = _RANGE.match(name)
    function, file, line = said.groups() if said else ("", "", "0")
    each, share = sum(times) / selected.count / 1e6, sum(times) / selected.length_ns
    return StagePlace(stage, function, file, int(line), each, share, len(times) / selected.count)
