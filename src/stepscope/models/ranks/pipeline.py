"""Pipelines of a job: their stages, micro-batches and bubble, and which of their ranks are slow.

Stages follow each other: a rank that works longer than another stage is no straggler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.facts.summary.numbers import ms
from stepscope.models.ranks.collectives import Matched
from stepscope.models.ranks.sketch import JobTable
from stepscope.models.ranks.stragglers import SlowRanks, find_stragglers, machines_of

_UNEVEN = 1.1  # the longest stage over the mean: stages of whole layers are seldom closer
_ALIKE = 0.2  # of the step: other schedules wait for far less; recorded stages vary
_NOTABLE = 0.05  # of the step: less is not advised
_PER_STAGE = 2  # micro-batches per stage that are advised: from 1, the bubble shrinks to a third


class Pipeline(msgspec.Struct, frozen=True):
    """The pipelines of a job, which are alike; times in ms per step.

    Attributes:
        replicas: how many pipelines.
        micro_batches: what the first stage sends to the next per step.
        stage_ms: the own work of the median rank of each stage.
        bubble: the share of the step that the mean stage waits.
    """

    replicas: int
    micro_batches: int
    stage_ms: tuple[float, ...]
    bubble: float

    def step_ms(self, micro_batches: int, even: bool = False) -> float:
        """A step: one micro-batch through all stages, then the others through the longest.

        Source: Huang et al., GPipe, 2019, section 2.3, for stages of any length.
        """
        longest = float(np.mean(self.stage_ms)) if even else max(self.stage_ms)
        return (sum(self.stage_ms) + (micro_batches - 1) * longest) / micro_batches

    @property
    def is_plain(self) -> bool:
        """Whether the stages wait for about as long as without interleaved or split passes."""
        expected = 1 - float(np.mean(self.stage_ms)) / self.step_ms(self.micro_batches)
        return abs(expected - self.bubble) <= _ALIKE

    @property
    def advised(self) -> int:
        """More micro-batches, a whole multiple of those there are."""
        wanted = _PER_STAGE * len(self.stage_ms)
        return self.micro_batches * max(1, -(-wanted // self.micro_batches))

    @property
    def saved_ms(self) -> tuple[float, float]:
        """What the advised micro-batches save, and what stages of the same length do with those there are."""
        step_ms = self.step_ms(self.micro_batches)
        return step_ms - self.step_ms(self.advised), step_ms - self.step_ms(self.micro_batches, even=True)

    @property
    def sentence(self) -> str:
        """How many stages and micro-batches, the bubble, and the stage that is longest."""
        one = self.micro_batches == 1
        count = "1 micro-batch" if one else f"{self.micro_batches} micro-batches"
        text = f"Pipeline of {len(self.stage_ms)} stages, {count} per step: each stage waits "
        text += f"{self.bubble:.0%} of the step for the others (bubble)"
        mean = float(np.mean(self.stage_ms))
        ratio = max(self.stage_ms) / mean if mean else 1.0
        if ratio < _UNEVEN:
            return f"{text}."
        number = int(np.argmax(self.stage_ms))
        return f"{text}; the stages are uneven, stage {number} works {ratio:.2g} times the mean."

    @property
    def advice(self) -> str:
        """What makes the bubble smaller, and how much; empty if nothing much does."""
        if not self.is_plain:
            return ""
        parts = []
        (more, even), least = self.saved_ms, _NOTABLE * self.step_ms(self.micro_batches)
        if more >= least:
            parts.append(
                f"Split the batch into more micro-batches: n_microbatches={self.advised} saves at most "
                f"{ms(more)} ms per step, if small ones compute as fast."
            )
        if even >= least:
            parts.append(f"Move layers to the other stages: even ones save {ms(even)} ms.")
        return " ".join(parts)


def pipeline_of(table: JobTable, matched: Matched, places: dict[str, Ids]) -> Pipeline | None:
    """The pipelines of a job; None if there are none, or no call of theirs is kept."""
    stage = places.get("pipeline stage")
    if stage is None:
        return None
    own = table.own_ms.mean(axis=1)
    rank_of = {one.rank: row for row, one in enumerate(table.sketches)}
    to_next = [stage[rank_of[key.pair[1]]] == 1 if key.pair[1] in rank_of else False for key in matched.keys]
    sends = matched.sends & (stage[matched.rank] == 0) & np.array(to_next, np.bool_)[matched.key]
    senders, steps = np.unique(matched.rank[sends]), np.unique(matched.columns.step[sends])
    if not len(senders):
        return None
    count = max(round(int(sends.sum()) / len(senders) / len(steps)), 1)
    stages = tuple(float(np.median(own[stage == one])) for one in range(int(stage.max()) + 1))
    known = stage >= 0
    bubble = 1 - float(own[known].mean()) / max(float(table.length[known].mean()), 1e-9)
    return Pipeline(int((stage == 0).sum()), count, stages, min(max(bubble, 0.0), 1.0))


def slow_of_pipelines(table: JobTable, stage: Ids, micro_batches: int) -> list[SlowRanks]:
    """Ranks that are slower than the others of their stage, and stages that are longer than others.

    With one micro-batch the stages work one after the other, so that it does not matter which does
    what.

    Args:
        stage: of each rank, -1 for none, shape (ranks,).
    """
    slow = _uneven_stages(table, stage) if micro_batches > 1 else []
    for number in np.unique(stage).tolist():
        rows = np.flatnonzero(stage == number).tolist()
        if len(rows) > 1:
            slow += [_in_job(one, table, rows) for one in find_stragglers(_ranks_of(table, rows))]
    return slow


def _uneven_stages(table: JobTable, stage: Ids) -> list[SlowRanks]:
    """Stages that work longer than the others: their work can move to those."""
    return [
        one._replace(
            straggler=msgspec.structs.replace(
                one.straggler,
                cause=f"all of pipeline stage {stage[one.rows[0]]}: the stages are out of balance",
            ),
            moves=stage,
        )
        for one in find_stragglers(table, stage)
        if _is_whole_stage(one.rows, stage)
    ]


def _is_whole_stage(rows: Sequence[int], stage: Ids) -> bool:
    numbers = set(stage[list(rows)].tolist())
    return len(numbers) == 1 and -1 not in numbers and len(rows) == int((stage == min(numbers)).sum())


def _ranks_of(table: JobTable, rows: list[int]) -> JobTable:
    return replace(
        table,
        sketches=[table.sketches[row] for row in rows],
        places=[table.places[row] for row in rows],
        work=table.work[rows],
        length=table.length[rows],
    )


def _in_job(one: SlowRanks, table: JobTable, rows: list[int]) -> SlowRanks:
    """Ranks of a part of the job, by their positions in the job."""
    positions = [rows[row] for row in one.rows]
    node = "" if one.straggler.in_turn else machines_of(table, positions)
    return one._replace(rows=positions, straggler=msgspec.structs.replace(one.straggler, node=node))
