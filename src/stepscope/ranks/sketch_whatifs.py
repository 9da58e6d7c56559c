"""What-ifs of a whole job, answered from its sketches.

The same changes as `whatif`'s `no_straggler` and `bandwidth`, without opening a trace again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.annotate.ranks import usual_of_peers
from stepscope.arrays import Ids
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.replay import Replay
from stepscope.ranks.sketch import Sketch

_NOT_COMPUTING = ("host", "data_loading")


def whatifs(table: JobTable, replay: Replay) -> dict[str, float]:
    """The step, ms, after each change; changes that do not apply are left out."""
    asked = {"no_straggler": "no_straggler", "bandwidth:factor=2": "bandwidth"}
    changed = {text: job_with(table, replay, name, 2.0) for text, name in asked.items()}
    return {text: job.step_ms for text, job in changed.items() if job is not None}


def job_with(table: JobTable, replay: Replay, name: str, factor: float) -> Replay | None:
    """The job after a change to all its ranks; None for a change that sketches do not show.

    Args:
        table: the ranks.
        replay: their job.
        name: of the change.
        factor: of `bandwidth`.
    """
    if name == "no_straggler" and len(table.sketches) > 1:
        return without_stragglers(table, replay)
    if name == "bandwidth" and replay.transfer.any():
        return replay.with_transfer(replay.transfer / factor)
    return None


def without_stragglers(table: JobTable, replay: Replay) -> Replay:
    """The job if ranks that work longer than the median peer worked as long as it does.

    Peers run the same kernels; if some rank has no peer, all ranks are compared. Without a device,
    all of the training thread's work counts.
    """
    on_device = any(one.device or one.idle for one in table.sketches)
    computing = [not on_device or stage not in _NOT_COMPUTING for stage in table.stages]
    busy = table.work[:, computing].sum(axis=(1, 2))
    factor = np.minimum(usual_of_peers(busy, _peers(table.sketches)) / np.maximum(busy, 1e-9), 1)
    return replay.scaled(np.repeat(factor[:, None], len(table.steps), axis=1))


def _peers(sketches: Sequence[Sketch]) -> Ids:
    """The group of each rank: ranks that run the same kernels equally often."""
    kinds = [frozenset((name, count) for name, (count, _) in one.kernels.items())
             for one in sketches]  # fmt: skip
    numbers = {kind: row for row, kind in enumerate(dict.fromkeys(kinds))}
    group = np.array([numbers[kind] for kind in kinds], np.int64)
    return group if np.bincount(group).min() > 1 else np.zeros_like(group)
