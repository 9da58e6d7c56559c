"""Where work outside of training is: evaluation, saving, blocks without gradients, the rest.

A capture marks the first three with ranges. Of the rest of `other`, and of data loading in the
main process, it samples the line that the training loop executes. The function of the loop itself
has a place for each line; any other has one, with its most frequent line.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

import numpy as np

from stepscope.base.arrays import Times
from stepscope.facts.annotate.links.launches import on_host
from stepscope.facts.summary.facts import StagePlace
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.read.recorded.samples_json import CATEGORY, IN_LOOP
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import OUTSIDE_STAGES, STAGES

_RANGE = re.compile(r"^stepscope\.(?:evaluation|checkpointing|block): (.*) \((.*):(\d{1,9})\)$")
_SAMPLED = re.compile(r"^(.*) \((.*):(\d{1,9})\)$")
_FEWEST = 3  # samples of a function
_SAMPLED_STAGES = ("other", "data_loading")
_OUTSIDE = [STAGES.index(stage) for stage in OUTSIDE_STAGES]


def places_of(selected: SelectedSteps) -> list[StagePlace]:
    """The places that a capture marked or sampled, the longest first."""
    events = selected.trace.events
    named = events.text("name").where(lambda name: _RANGE.match(name) is not None)
    rows = np.flatnonzero(named & selected.chosen_events & on_host(selected.trace))
    trains = (events["stage"] >= 0) & ~np.isin(events["stage"], _OUTSIDE)
    around = inherit(events["parent"], np.where(named, np.arange(len(events)), -1))
    rows = rows[~np.isin(rows, around[trains])]  # a teacher's forward pass is part of training
    spans = events.spans(rows)
    steps = Intervals(*selected.steps.spans())
    inside = steps.within(*spans)  # a block may outlast them
    spent: dict[tuple[str, str], list[int]] = {}
    for row, time in zip(rows.tolist(), inside.tolist(), strict=True):
        key = (events.text("stage")[row] or "", events.text("name")[row] or "")
        spent.setdefault(key, []).append(time)
    found = [_place(selected, *key, times) for key, times in spent.items()]
    marked = Intervals(*spans)
    sampled = [place for stage in _SAMPLED_STAGES for place in _sampled(selected, stage, marked)]
    return sorted([*found, *sampled], key=lambda place: -place.ms)


def _sampled(selected: SelectedSteps, stage: str, marked: Intervals) -> list[StagePlace]:
    """What takes the time in a stage that no range marks, by function and line.

    The line of the loop that asks for a batch does not say what takes the time.
    """
    runs = selected.rows_of(selected.trace["stages"])
    runs = runs.take(runs.text("stage").mask(stage))
    left = Intervals(*runs.spans()).minus(marked)
    seen: defaultdict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
    for (name, in_loop), count in _samples(selected, left).items():
        if found := _SAMPLED.match(name):
            function, file, line = found[1], found[2], int(found[3])
            seen[function, file, line if in_loop else 0][line] += count
    total = sum(map(Counter.total, seen.values()))
    places = [
        _sampled_place(selected, stage, left.total(), key[:2], lines, total)
        for key, lines in seen.items()
        if lines.total() >= _FEWEST and not (key[2] and stage == "data_loading")
    ]
    return [place for place in places if place.error_ms < place.ms]


def _samples(selected: SelectedSteps, spans: Intervals) -> Counter[tuple[str, bool]]:
    """How often the rank has a sample of each name in some spans, and whether it is the loop's."""
    instants = selected.trace["instants"]
    rank = selected.trace["tracks"]["rank"][instants["track"]]
    time: Times = instants["time_ns"]
    in_loop = instants.text("category").mask(IN_LOOP)
    chosen = (in_loop | instants.text("category").mask(CATEGORY)) & (rank == selected.rank)
    chosen &= spans.within(time, time + 1) > 0
    rows = np.flatnonzero(chosen)
    names = (name or "" for name in instants.text("name").take(rows))
    return Counter(zip(names, in_loop[rows].tolist(), strict=True))


def _sampled_place(
    selected: SelectedSteps,
    stage: str,
    spent_ns: int,
    where: tuple[str, str],
    lines: Counter[int],
    total: int,
) -> StagePlace:
    """A place with the time of its share of the samples.

    The error is of a 95 % interval by A. Agresti and B. A. Coull, "Approximate is better than
    'exact' for interval estimation of binomial proportions", The American Statistician 52 (1998).
    """
    count, each = lines.total(), spent_ns / selected.count / 1e6
    middle = (count + 2) / (total + 4)
    error = 2 * math.sqrt(middle * (1 - middle) / (total + 4))
    part, line = count / total, lines.most_common(1)[0][0]
    share = part * spent_ns / selected.length_ns
    return StagePlace(stage, *where, line, part * each, share, 0.0, count, error * each)


def _place(selected: SelectedSteps, stage: str, name: str, times: list[int]) -> StagePlace:
    said = _RANGE.match(name)
    function, file, line = said.groups() if said else ("", "", "0")
    each, share = sum(times) / selected.count / 1e6, sum(times) / selected.length_ns
    return StagePlace(stage, function, file, int(line), each, share, len(times) / selected.count)
