"""Pipelines of a job: who sends to whom, stages, micro-batches and bubble, and which ranks are slow.

Stages follow each other: a rank that works longer than another stage is no straggler. Gloo does not
record to whom a rank sends: then its calls show the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.base.numbers import ms
from stepscope.models.ranks.calls import PAIRS, CallColumns, CallKind
from stepscope.models.ranks.collectives import Matched
from stepscope.models.ranks.passes import KINDS, Passes
from stepscope.models.ranks.sketch import JobTable, Sketch
from stepscope.models.ranks.stragglers import SlowRanks, find_stragglers, machines_of

_UNEVEN = 1.1  # the longest stage over the mean: stages of whole layers are seldom closer
_ALIKE = 0.2  # of the step: other schedules wait for far less; recorded stages vary
_NOTABLE = 0.05  # of the step: less is not advised
_PER_STAGE = 2  # micro-batches per stage that are advised: from 1, the bubble shrinks to a third
_LAUNCH_NS = 10_000  # about what a launch takes: work that begins so shortly before a send follows it
_SENT_BY_TWO_CHUNKS = 3  # times that the first of two stages sends for a micro-batch in two chunks
_LEAST_SHARE = 0.1  # of passes that begin in the first chunk: nobody divides a stage into more than ten
_FIRST, _MIDDLE, _LAST = "first", "middle", "last"


class Pipeline(msgspec.Struct, frozen=True):
    """The pipelines of a job, which are alike; times in ms per step."""

    replicas: int  # how many pipelines
    micro_batches: int  # that the first stage sends to the next per step, each in every chunk
    stage_ms: tuple[float, ...]  # the own work of the median rank of each stage
    bubble: float  # the share of the step that the mean stage waits
    chunks: int = 1  # parts of the model on each stage: of several, passes are interleaved
    is_most: bool = False  # whether fewer micro-batches in several chunks may send as often

    def step_ms(self, micro_batches: int, even: bool = False) -> float:
        """A step: all micro-batches through the longest stage, and one through a chunk of the others.

        Sources: Huang et al., GPipe, 2019, section 2.3, for stages of any length; of chunks, Narayanan
        et al., Efficient Large-Scale Language Model Training, 2021, section 2.2.
        """
        longest = float(np.mean(self.stage_ms)) if even else max(self.stage_ms)
        return longest + (sum(self.stage_ms) - longest) / self.chunks / micro_batches

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
    def saved_by_more_ms(self) -> float:
        return self.step_ms(self.micro_batches) - self.step_ms(self.advised)

    @property
    def saved_by_even_ms(self) -> float:
        """What stages of the same length save with as many micro-batches as there are."""
        return self.step_ms(self.micro_batches) - self.step_ms(self.micro_batches, even=True)

    @property
    def sentence(self) -> str:
        """How many stages and micro-batches, the bubble, and the stage that is longest."""
        one = self.micro_batches == 1
        count = "1 micro-batch" if one else f"{'at most ' * self.is_most}{self.micro_batches} micro-batches"
        count += f" in {self.chunks} chunks" if self.chunks > 1 else ""
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
        least = _NOTABLE * self.step_ms(self.micro_batches)
        if (more := self.saved_by_more_ms) >= least:
            parts.append(
                f"Split the batch into more micro-batches: n_microbatches={self.advised} saves at most "
                f"{ms(more)} ms per step, if small ones compute as fast."
            )
        if (even := self.saved_by_even_ms) >= least:
            parts.append(f"Move layers to the other stages: even ones save {ms(even)} ms.")
        return " ".join(parts)


def pipeline_of(table: JobTable, matched: Matched, places: dict[str, Ids]) -> Pipeline | None:
    """The pipelines of a job; None if there are none, or no call of theirs is kept."""
    stage = places.get("pipeline stage")
    if stage is None:
        return None
    own, last = table.own_ms.mean(axis=1), int(stage.max())
    rank_of = {one.rank: row for row, one in enumerate(table.sketches)}
    target = [stage[rank_of[key.pair[1]]] if key.pair[1] in rank_of else -1 for key in matched.keys]
    at, to = stage[matched.rank], np.array(target, np.int64)[matched.key]
    sends, back = (matched.sends & (at == one) & (to == other) for one, other in ((0, 1), (last, 0)))
    senders, steps = np.unique(matched.rank[sends]), np.unique(matched.columns.step[sends])
    if not len(senders):
        return None
    # From the last stage an interleaved pass goes on in the next chunk of the first.
    onward = _onward_of_two(table, stage) if last == 1 else int(back.sum()) / int(sends.sum())
    chunks = max(round(1 / max(1 - (onward or 0.0), _LEAST_SHARE)), 1)
    passed = 2 * chunks - 1 if last == 1 else chunks  # sends of a micro-batch from the first to the second
    count = max(round(int(sends.sum()) / len(senders) / len(steps) / passed), 1)
    stages = tuple(float(np.median(own[stage == one])) for one in range(last + 1))
    known = stage >= 0
    bubble = 1 - float(own[known].mean()) / max(float(table.length[known].mean()), 1e-9)
    is_most = onward is None and count >= _SENT_BY_TWO_CHUNKS
    return Pipeline(int((stage == 0).sum()), count, stages, min(max(bubble, 0.0), 1.0), chunks, is_most)


def _onward_of_two(table: JobTable, stage: Ids) -> float | None:
    """Of two stages, the passes that the second sends on to the first's next chunk, and the other way
    round in backward, per pass that the second receives or sends back; None if nothing shows them.

    Each sends forward and backward passes to the other: the work before a send tells which it is.
    """
    sent = np.zeros((2, len(KINDS)), np.int64)
    for one, number in zip(table.sketches, stage.tolist(), strict=True):
        passes, columns = Passes.unpack(one.calls.passes), one.calls.columns()
        if number >= 0 and len(passes.step):
            sends = np.array([kind.kind.endswith(PAIRS[0]) for kind in one.calls.kinds])[columns.kind]
            longest = 1 + max(passes.begin_ns.max(), columns.arrival_ns.max(initial=0))
            ready = (columns.step * longest + columns.arrival_ns)[sends] - _LAUNCH_NS
            before = np.searchsorted(passes.step * longest + passes.begin_ns, ready) - 1
            np.add.at(sent[number], passes.kind[np.maximum(before, 0)], 1)
    forward, backward = (KINDS.index(kind) for kind in ("forward", "backward"))
    onward, usual = sent[1, forward] + sent[0, backward], sent[0, forward] + sent[1, backward]
    return float(onward / usual) if onward < usual else None


def slow_of_pipelines(table: JobTable, stage: Ids, micro_batches: int) -> list[SlowRanks]:
    """Ranks that are slower than the others of their stage, and stages that are longer than others;
    `stage` has shape (ranks,), -1 for none.

    With one micro-batch the stages work one after the other, so that it does not matter which does what.
    """
    slow = _uneven_stages(table, stage) if micro_batches > 1 else []
    for number in np.unique(stage).tolist():
        rows = np.flatnonzero(stage == number).tolist()
        if len(rows) > 1:
            sketches, places = [table.sketches[row] for row in rows], [table.places[row] for row in rows]
            work, length = table.work[rows], table.length[rows]
            alike = replace(table, sketches=sketches, places=places, work=work, length=length)
            slow += [_in_job(one, table, rows) for one in find_stragglers(alike)]
    return slow


def _uneven_stages(table: JobTable, stage: Ids) -> list[SlowRanks]:
    """Stages that work longer than the others: their work can move to those."""
    uneven = []
    for one in find_stragglers(table, stage):
        number = int(stage[one.rows[0]])
        if number >= 0 and set(one.rows) == {*np.flatnonzero(stage == number).tolist()}:
            cause = f"all of pipeline stage {number}: the stages are out of balance"
            straggler = msgspec.structs.replace(one.straggler, cause=cause)
            uneven.append(one._replace(straggler=straggler, moves=stage))
    return uneven


def _in_job(one: SlowRanks, table: JobTable, rows: list[int]) -> SlowRanks:
    """Ranks of a part of the job, by their positions in the job."""
    positions = [rows[row] for row in one.rows]
    node = "" if one.straggler.in_turn else machines_of(table, positions)
    return one._replace(rows=positions, straggler=msgspec.structs.replace(one.straggler, node=node))


def with_peers(sketches: Sequence[Sketch]) -> list[Sketch]:
    """The sketches with the peers of their sends and receives, where a pipeline shows them.

    The first stage begins with a send, the last makes as many calls as it, and a stage between
    them twice as many. The ranks of a pipeline are next to each other, or those of a stage are.
    """
    ranks = [_RankCalls.of(one) for one in sketches]
    known = list(sketches)
    for chain in _chains(ranks):
        around = [-1, *(sketches[row].rank for row in chain), -1]
        for place, row in enumerate(chain):
            known[row] = ranks[row].with_peers(around[place], around[place + 2])
    return known


@dataclass(frozen=True)
class _RankCalls:
    """The sends and receives of a rank whose peers are unknown, in the order in which they end."""

    sketch: Sketch
    columns: CallColumns
    rows: Ids  # of the columns
    ways: list[str]  # `send` or `recv` of each

    @classmethod
    def of(cls, sketch: Sketch) -> "_RankCalls":
        ways, columns = [_way(kind) for kind in sketch.calls.kinds], sketch.calls.columns()
        rows = np.flatnonzero(np.array([bool(way) for way in ways], np.bool_)[columns.kind])
        ends = columns.start_ns[rows] + columns.duration_ns[rows]  # one may begin to receive early
        rows = rows[np.lexsort((ends, columns.step[rows]))]
        return cls(sketch, columns, rows, [ways[kind] for kind in columns.kind[rows].tolist()])

    def with_peers(self, before: int, after: int) -> Sketch:
        """The sketch with these neighbors, -1 for none."""
        peers = self._peers(before, after)
        calls, kind = self.sketch.calls, self.columns.kind.copy()
        kinds = {one: number for number, one in enumerate(calls.kinds)}
        for row, way, peer in zip(self.rows.tolist(), self.ways, peers, strict=True):
            one = msgspec.structs.replace(calls.kinds[kind[row]], kind=way, peer=peer)
            kind[row] = kinds.setdefault(one, len(kinds))
        packed = self.columns._replace(kind=kind).pack()
        named = msgspec.structs.replace(calls, kinds=list(kinds), packed=packed)
        return msgspec.structs.replace(self.sketch, calls=named)

    def _peers(self, before: int, after: int) -> list[int]:
        """The peer of each call: backward sends go back, and what is sent on was received so."""
        if before < 0 or after < 0:
            return [max(before, after)] * len(self.rows)
        places = self.sketch.calls.places
        peers, receives_from = [-1] * len(self.rows), after
        for number in range(len(self.rows) - 1, -1, -1):
            if self.ways[number] == "recv":
                peers[number] = receives_from
                continue
            is_back = "backward" in places[self.columns.place[self.rows[number]]]
            peers[number], receives_from = (before, after) if is_back else (after, before)
        return peers


def _way(kind: CallKind) -> str:
    """`send` or `recv`; empty for other calls, and where the peer is known."""
    name = kind.kind.rpartition(":")[2]
    return name if name in PAIRS and kind.peer < 0 else ""


def _chains(ranks: Sequence[_RankCalls]) -> list[list[int]]:
    """The ranks of each pipeline, by stage, as positions; none where the calls show no pipelines."""
    roles = _roles(ranks)
    firsts = roles.count(_FIRST)
    if not firsts or len(roles) % firsts or len(roles) // firsts < 2:
        return []
    length = len(roles) // firsts
    expected = [_FIRST, *[_MIDDLE] * (length - 2), _LAST]
    order = sorted(range(len(roles)), key=lambda row: ranks[row].sketch.rank)
    together = [order[first : first + length] for first in range(0, len(order), length)]
    apart = [order[first::firsts] for first in range(firsts)]
    for chains in (together, apart):
        if all([roles[row] for row in chain] == expected for chain in chains):
            return chains
    return []


def _roles(ranks: Sequence[_RankCalls]) -> list[str]:
    """What each rank is in its pipeline; empty for one that is in none."""
    counts = [len(one.rows) / max(len(np.unique(one.columns.step[one.rows])), 1) for one in ranks]
    least = min(counts, default=0.0)
    roles = {("send", least): _FIRST, ("recv", least): _LAST, ("recv", 2 * least): _MIDDLE}
    return [
        roles.get((one.ways[0] if one.ways else "", count), "")
        for one, count in zip(ranks, counts, strict=True)
    ]
