"""Ranks that work longer than the others: since when, why, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, Mask
from stepscope.ranks.job_table import PAIR, JobTable, usual
from stepscope.ranks.sketch import Sketch

_LEAST_SHARE = 0.03  # of the step: what is smaller is no straggler
_LEAST_SPREADS = 6.0  # robust spreads of the other ranks
_PERSISTENT = 0.8  # of the steps
_ALIKE = 0.35  # of the excess: kernels that differ by less are slower alike
_EXPLAINED = 0.3  # of the excess: below, kernels do not explain it
_STAGE_WORDS = {
    "data_loading": "data loading",
    "zero_grad": "zero grad",
    "host": "host-bound time",
    "other": "time outside of the stages",
}
_CAUSES = {
    "data_loading": "its batches arrive late",
    "host": "its CPU launches work later than the others'",
}


@dataclass(frozen=True)
class Straggler:
    """Ranks that work longer than the others in one stage.

    Attributes:
        ranks: which.
        node: the machine, if they are all the ranks of one.
        stage: in which stage.
        steps: first and last step, or None if in (nearly) all steps.
        excess_ms: how much longer than the median rank, per step concerned.
        excess: the same as a share of the median rank's time in that stage; inf if that is zero.
        cause: in a few words.
        cost_ms: what the job would gain per step, on average over all steps, without this excess.
        groups: of a slow link, its process groups.
    """

    ranks: tuple[int, ...]
    node: str
    stage: str
    steps: tuple[int, int] | None
    excess_ms: float
    excess: float
    cause: str
    cost_ms: float = 0.0
    groups: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Who, where, since when, how much, and why."""
        return f"{self.who}: {self.what}."

    @property
    def who(self) -> str:
        """The ranks in words."""
        return ranks_in_words(self.ranks, self.node)

    @property
    def what(self) -> str:
        """In which stage and since when they work longer, how much, and why."""
        stage = _STAGE_WORDS.get(self.stage, self.stage)
        much = f"{self.excess:.0%}" if self.excess < 10 else f"{self.excess_ms:.3g} ms"
        when = "every step" if self.steps is None else f"steps {self.steps[0]}–{self.steps[1]}"
        return f"{stage} {much} longer in {when}, {self.cause}"


def find_stragglers(table: JobTable) -> list[Straggler]:
    """Ranks whose own work is longer than the median rank's, by stage; costs are not known yet."""
    if len(table.sketches) < 2:
        return []
    found = []
    received = np.array([_received(one) for one in table.sketches])
    for place in range(len(table.stages)):
        values = table.work[:, place, :]
        excess = values - usual(values)
        slow = excess > threshold(excess, table.step_ms)
        for rows, when in _groups(table.sketches, slow):
            found.append(_straggler(table, place, rows, when, received))
    return found


def threshold(excess: Floats, step_ms: float) -> Floats:
    """Above which a rank is slow in a step: a share of the step, and far beyond the others.

    Of two ranks, where none shows the spread of the others, far beyond the changes from step to
    step.
    """
    around = excess if len(excess) > PAIR else excess - np.median(excess, axis=1, keepdims=True)
    spread = np.median(np.abs(around), axis=0) * 1.4826
    noise = np.maximum(spread, np.median(spread))
    result: Floats = np.maximum(_LEAST_SHARE * step_ms, _LEAST_SPREADS * noise)
    return result


def _groups(sketches: Sequence[Sketch], slow: Mask) -> list[tuple[list[int], Mask]]:
    """Ranks that are slow in the same steps, each group with these steps."""
    groups: list[tuple[list[int], Mask]] = []
    for row in np.flatnonzero(slow.any(axis=1)).tolist():
        when = slow_steps(slow[row])
        if when is None:
            continue
        for members, other in groups:
            same_node = sketches[members[0]].node == sketches[row].node
            if same_node and _overlap(when, other) > _PERSISTENT:
                members.append(row)
                break
        else:
            groups.append(([row], when))
    return groups


def slow_steps(slow: Mask) -> Mask | None:
    """In which steps a rank is slow: all, one stretch of steps, or None where that is chance."""
    if slow.mean() >= _PERSISTENT:
        return np.ones(len(slow), np.bool_)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], slow.astype(np.int8), [0]]))).tolist()
    runs = [(end - start, start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    length, start, end = max(runs, default=(0, 0, 0))
    if length < 3:
        return None
    when = np.zeros(len(slow), np.bool_)
    when[start:end] = True
    return when


def _overlap(a: Mask, b: Mask) -> float:
    return float((a & b).sum() / max(1, (a | b).sum()))


def _straggler(
    table: JobTable, place: int, rows: list[int], when: Mask, received: Floats
) -> Straggler:
    values = table.work[:, place, :]
    others = usual(values)
    excess = float(np.median((values[rows] - others)[:, when]))
    of_others = float(np.median(others[when]))
    ratio = excess / of_others if of_others else float("inf")
    sketches, stage = table.sketches, table.stages[place]
    node = sketches[rows[0]].node
    whole = node and {row for row, one in enumerate(sketches) if one.node == node} == set(rows)
    return Straggler(
        ranks=tuple(sorted(sketches[row].rank for row in rows)),
        node=node if whole else "",
        stage=stage,
        steps=span(when, table.steps),
        excess_ms=excess,
        excess=ratio,
        cause=_cause(sketches, stage, rows, excess, ratio, received),
    )


def span(when: Mask, steps: list[int]) -> tuple[int, int] | None:
    """The first and the last of some steps; None for all."""
    positions = np.flatnonzero(when).tolist()
    return None if when.all() else (steps[positions[0]], steps[positions[-1]])


def _cause(
    sketches: Sequence[Sketch], stage: str, rows: list[int], excess_ms: float, excess: float,
    received: Floats,
) -> str:  # fmt: skip
    if stage in _CAUSES:
        return _CAUSES[stage]
    tokens = _received_ratio(received, rows)
    if tokens > 1 + _ALIKE * min(excess, 1):
        return f"all-to-all brings it {tokens:.3g} times the bytes of the others: imbalanced expert"
    ratios = _kernel_ratios(sketches, rows)
    if not ratios:
        return "its own work takes longer"
    return _cause_by_kernels(sketches, rows, excess_ms, ratios)


def _cause_by_kernels(
    sketches: Sequence[Sketch], rows: list[int], excess_ms: float,
    ratios: dict[str, tuple[float, float]],
) -> str:  # fmt: skip
    first = sketches[rows[0]]
    work, place = ("kernel", "device") if first.device or first.idle else ("operator", "CPU")
    longer = _longer_ms(sketches, rows)
    if longer < _EXPLAINED * excess_ms:
        return f"in Python or waiting (no {work} takes longer)"
    values = np.array([ratio for ratio, _ in ratios.values()])
    if len(values) >= 3 and _are_alike(values):
        return f"slower {place} (all {work}s alike)"
    extra = {name: (ratio - 1) * each for name, (ratio, each) in ratios.items()}
    name = max(extra, key=lambda one: extra[one])
    if extra[name] > _EXPLAINED * longer:
        return f"mostly {name}"
    return f"more work (as many ms per {work}, more {work}s)"


def _longer_ms(sketches: Sequence[Sketch], rows: list[int]) -> float:
    """How much longer the kernels of slow ranks take than those of the others, per step."""
    total = np.array([
        sum(count * each for count, each in one.kernels.values()) for one in sketches
    ])  # fmt: skip
    return float(np.median(total[rows]) - np.median(np.delete(total, rows)))


def _received_ratio(totals: Floats, rows: list[int]) -> float:
    """The bytes that these ranks receive in all-to-all, over what the others do; 1 if unknown."""
    others = np.delete(totals, rows)
    if not len(others) or np.median(others) <= 0:
        return 1.0
    return float(np.median(totals[rows]) / np.median(others))


def _received(sketch: Sketch) -> float:
    exchanges = [kind.kind.startswith("alltoall") for kind in sketch.calls.kinds]
    if not any(exchanges):
        return 0.0
    columns = sketch.calls.columns()
    mine = np.array(exchanges, np.bool_)[columns.kind] & (columns.received > 0)
    return float(columns.received[mine].sum() / max(len(np.unique(columns.step)), 1))


def _are_alike(ratios: Floats) -> bool:
    """Whether most kernels are slower by about the same."""
    middle = float(np.median(ratios))
    least = 1 + (1 - _ALIKE) * (middle - 1)
    return middle > 1 + _LEAST_SHARE and float(np.percentile(ratios, 25)) > least


def _kernel_ratios(sketches: Sequence[Sketch], rows: list[int]) -> dict[str, tuple[float, float]]:
    """For each kernel the median duration on slow ranks over that on the others, and its time."""
    others = [one for row, one in enumerate(sketches) if row not in set(rows)]
    found = {}
    for name, (count, _) in sketches[rows[0]].kernels.items():
        slow = [sketches[row].kernels[name][1] for row in rows if name in sketches[row].kernels]
        usual = [one.kernels[name][1] for one in others if name in one.kernels]
        if usual and np.median(usual) > 0:
            ratio = float(np.median(slow) / np.median(usual))
            found[name] = (ratio, count * float(np.median(usual)))
    return found


def ranks_in_words(ranks: Sequence[int], node: str) -> str:
    """`Rank 5`, `Ranks 8–15, all on node-1`, `Ranks 1, 4`."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}" + (f", alone on {node}" if node else "")
    row = ranks[-1] - ranks[0] + 1 == len(ranks)
    names = f"{ranks[0]}–{ranks[-1]}" if row else ", ".join(map(str, ranks))
    return f"Ranks {names}" + (f", all on {node}" if node else "")
