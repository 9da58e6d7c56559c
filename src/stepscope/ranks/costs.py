"""What findings cost: the job replayed without each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.ranks.collectives import bus_bandwidth
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.replay import Replay
from stepscope.ranks.straggler_search import Found
from stepscope.ranks.stragglers import Straggler

_MOST_REPLAYS = 12
_MOST_APART = 5  # findings that tell steps apart: each of their combinations is replayed


def with_costs(
    slow: Sequence[Found], links: Sequence[Straggler], table: JobTable, replay: Replay
) -> tuple[Straggler, ...]:
    """The findings with their costs, the most expensive first; only the largest are replayed.

    Args:
        slow: ranks that work longer.
        links: slow links.
        table: the ranks.
        replay: their job.
    """
    without: list[tuple[Straggler, Callable[[], Replay]]] = [
        *((one.straggler, partial(_less_work, one, table, replay)) for one in slow),
        *((one, partial(_faster_link, one, table, replay)) for one in links),
    ]
    largest = sorted(without, key=lambda pair: -sum(pair[0].stages.values()))
    measured = replay.step_ms
    costs = [
        replace(one, cost_ms=measured - changed().step_ms)
        for one, changed in largest[:_MOST_REPLAYS]
    ]
    ordered = sorted(costs, key=lambda one: (-one.cost_ms, -one.excess_ms))
    return (*ordered, *(one for one, _ in largest[_MOST_REPLAYS:]))


def together_ms(
    slow: Sequence[Found], links: Sequence[Straggler], table: JobTable, replay: Replay
) -> float:
    """What the job would gain per step without all findings: each alone may be hidden by others."""
    excess = np.zeros_like(table.own_ms)
    for one in slow:
        excess[one.rows] += one.excess_ms
    changed = replay.without(excess) if slow else replay
    for link in links:
        changed = _faster_link(link, table, changed)
    return replay.step_ms - changed.step_ms if slow or links else 0.0


def steps_alike(slow: Sequence[Found], links: Sequence[Straggler], table: JobTable) -> Ids:
    """A number for each step, the same where the same findings are slow, shape (steps,).

    Args:
        slow: ranks that work longer.
        links: slow links.
        table: the ranks.
    """
    steps = np.array(table.steps)
    first, last = steps[0], steps[-1]
    spans = [one.steps or (first, last) for one in links]
    masks = [
        *((one.excess_ms > 0).any(axis=0) for one in slow),
        *((steps >= begin) & (steps <= end) for begin, end in spans),
    ][:_MOST_APART]
    numbers: Ids = np.zeros(len(steps), np.int64)
    for mask in masks:
        numbers = 2 * numbers + mask
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def of_pipeline_stages(
    found: Sequence[Found], table: JobTable, pipeline_stage: Ids | None
) -> list[Found]:
    """All workers of one pipeline stage are not slow: their stage has more work."""
    if pipeline_stage is None:
        return list(found)
    ranks = np.array([one.rank for one in table.sketches])
    members = {
        frozenset(ranks[pipeline_stage == number].tolist()): number
        for number in set(pipeline_stage.tolist()) - {-1}
    }
    return [
        replace(one, straggler=replace(
            one.straggler,
            cause=f"all of pipeline stage {number}: the stages are out of balance",
        ))
        if len(one.rows) > 1
        and (number := members.get(frozenset(one.straggler.ranks))) is not None
        else one
        for one in found
    ]  # fmt: skip


def _less_work(one: Found, table: JobTable, replay: Replay) -> Replay:
    excess = np.zeros_like(table.own_ms)
    excess[one.rows] = one.excess_ms
    return replay.without(excess)


def _faster_link(one: Straggler, table: JobTable, replay: Replay) -> Replay:
    """The link as fast as others like it; what passes through it saves as much for each byte."""
    keys = replay.matched.keys
    own = _meetings([key.name in one.groups for key in keys], one, table, replay)
    if not own.any():
        return replay
    transfer = np.where(own, replay.transfer / (1 + one.excess), replay.transfer)
    passes = [f"{key.kind} of {key.name}" in one.through for key in keys]
    wider = np.flatnonzero(_meetings(passes, one, table, replay))
    if len(wider):
        matched = replay.matched
        rate = float(np.nanmedian(bus_bandwidth(matched, np.flatnonzero(own))))
        on_wire = bus_bandwidth(matched, wider) * matched.transfer_ns[wider]
        saved = np.nan_to_num(on_wire / rate * (1 - 1 / (1 + one.excess)))
        transfer[wider] = np.maximum(transfer[wider] - saved, transfer[wider] / (1 + one.excess))
    return replay.with_transfer(transfer)


def _meetings(keys: list[bool], one: Straggler, table: JobTable, replay: Replay) -> Mask:
    """The meetings of some of the keys, in the steps in which a link is slow."""
    matched = replay.matched
    call = matched.first
    first, last = one.steps or (table.steps[0], table.steps[-1])
    step = np.array(table.steps)[matched.columns.step[call]]
    concerned: Mask = np.array(keys, np.bool_)[matched.key[call]] & (step >= first) & (step <= last)
    return concerned
