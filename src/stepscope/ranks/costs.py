"""What findings cost: the job replayed without each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.arrays import Mask
from stepscope.ranks.job_table import JobTable, usual
from stepscope.ranks.pipelines import pipeline_places
from stepscope.ranks.replay import Replay
from stepscope.ranks.stragglers import Straggler

_MOST_REPLAYS = 12


def with_costs(
    found: Sequence[Straggler], table: JobTable, replay: Replay
) -> tuple[Straggler, ...]:
    """The findings with their costs, the most expensive first; only the largest are replayed."""
    found = _named_stages(found, table, replay)
    largest = sorted(found, key=lambda one: -one.excess_ms)
    measured = replay.step_ms
    costs = [
        replace(one, cost_ms=measured - _without(one, table, replay).step_ms)
        for one in largest[:_MOST_REPLAYS]
    ]
    ordered = sorted(costs, key=lambda one: (-one.cost_ms, -one.excess_ms))
    return (*ordered, *largest[_MOST_REPLAYS:])


def _named_stages(found: Sequence[Straggler], table: JobTable, replay: Replay) -> list[Straggler]:
    """All workers of one pipeline stage are not slow: their stage has more work."""
    stage = pipeline_places(replay.matched, len(table.sketches)).get("pipeline stage")
    if stage is None:
        return list(found)
    ranks = np.array([one.rank for one in table.sketches])
    members = {
        frozenset(ranks[stage == number].tolist()): number for number in set(stage.tolist()) - {-1}
    }
    return [
        replace(one, cause=f"all of pipeline stage {number}: the stages are out of balance")
        if (number := members.get(frozenset(one.ranks))) is not None and len(one.ranks) > 1 else one
        for one in found
    ]  # fmt: skip


def _without(one: Straggler, table: JobTable, replay: Replay) -> Replay:
    if one.stage == "communication":
        concerned = _meetings(one, table, replay)
        return replay.with_transfer(
            np.where(concerned, replay.transfer / (1 + one.excess), replay.transfer)
        )
    rows = [row for row, sketch in enumerate(table.sketches) if sketch.rank in set(one.ranks)]
    values = table.work[:, table.stages.index(one.stage), :]
    excess = np.zeros_like(values)
    excess[rows] = np.maximum(values[rows] - usual(values), 0)
    return replay.without(excess)


def _meetings(one: Straggler, table: JobTable, replay: Replay) -> Mask:
    """The meetings of the slow process groups, in the steps concerned."""
    matched = replay.matched
    keys = [key.name in one.groups for key in matched.keys]
    call = matched.first
    first, last = one.steps or (table.steps[0], table.steps[-1])
    step = np.array(table.steps)[matched.columns.step[call]]
    concerned: Mask = np.array(keys, np.bool_)[matched.key[call]] & (step >= first) & (step <= last)
    return concerned
