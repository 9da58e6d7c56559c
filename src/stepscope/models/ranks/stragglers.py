"""Ranks that are slower than the others: who, in which stages, when, why."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.base.numbers import is_title, rounded
from stepscope.facts.summary.verdict import CANNOT_TELL
from stepscope.models.ranks.hangs import in_runs
from stepscope.models.ranks.sketch import UNSTAGED, JobTable, Sketch, by_step
from stepscope.models.ranks.slow_groups import (
    HALF,
    LEAST_SHARE,
    LEAST_Z,
    Excess,
    SlowGroup,
    slow_groups,
    spread,
    usual,
)
from stepscope.trace.recorded_steps import QUIET
from stepscope.trace.sets import Interner

_NOTABLE = 0.005  # of the step: a further stage of a straggler is named, at least
_NOTABLE_PART = 0.1  # of the excess of its first stage: the same
_ALSO = 3  # further stages that are named, so that a finding stays one sentence
_MOST_NAMES = 4  # machines that are named, likewise
_IN_TURN = {
    "host": "pauses at other times on each rank, as of Python's garbage collection",
    "data_loading": "a batch is late now and then, at other times on each rank",
}
_STAGE_WORDS = {"host": "host-bound time", "other": "other time", UNSTAGED: "computation"}


class Straggler(msgspec.Struct, frozen=True):
    """Ranks that work longer than the others, or a slow link."""

    ranks: tuple[int, ...]
    node: str  # the machine, if they are all the ranks of one
    stage: str
    steps: tuple[int, int] | None  # the first and the last step, None if in (nearly) all steps
    excess_ms: float  # how much longer than the median rank in that stage, per step concerned
    excess: float  # the same as a share of the median rank's time in that stage; inf if that is zero
    cause: str
    cost_ms: float = 0.0  # what the job would gain per step, on average over all steps, without this excess
    groups: tuple[str, ...] = ()  # of a slow link, its process groups
    through: tuple[str, ...] = ()  # what else passes through a slow link, such as `allreduce of world`
    stages: dict[str, float] = {}  # the excess of every stage that is notably longer, ms, the largest first
    count: int = 0  # in how many steps, where not in all or all of a stretch; else 0
    period: int = 0  # every how many steps, where regular; else 0
    grows: bool = False  # whether the excess grows from step to step
    in_turn: bool = False  # whether each rank is slow in other steps than the others
    also: str = ""  # the other stages in words: how much longer, and why if for another reason

    @property
    def sentence(self) -> str:
        """Who, where, how much and since when, as a title; then why, and who in full."""
        what, why = f"{stage_in_words(self.stage)} {longer(self.excess, self.excess_ms)}", self.cause
        when = steps_in_words(self.steps, self.count, self.period)
        if self.in_turn and self.count:
            why = f"{why}, in about {when}"
        else:
            what = f"{what} in {when}"
        full = f"{len(self.ranks)} ranks in turn" if self.in_turn else ranks_in_words(self.ranks, self.node)
        names = (full, ranks_in_words(self.ranks, ""), f"{len(self.ranks)} ranks")
        who = next(name for name in names if is_title(f"{name}: {what}"))
        why = f"{why[:1].upper()}{why[1:]}" if who == full else f"{full}: {why}"
        growing = ", more from step to step" if self.grows else ""
        return f"{who}: {what}. {why}{growing}{f'. Also {self.also}' if self.also else ''}."


class SlowRanks(NamedTuple):
    """A straggler, and the work that its ranks do more than the others."""

    straggler: Straggler
    rows: Sequence[int]
    excess_ms: Floats  # shape (rows, steps)
    moves: Ids | None = None  # of a pipeline stage whose work can move to the others the stage of each rank


def find_stragglers(table: JobTable, pipeline_stage: Ids | None = None) -> list[SlowRanks]:
    """Ranks whose own work is longer than the median rank's, or whole machines or pipeline stages
    (of each rank, -1 for none, shape (ranks,)); costs are not known yet."""
    if len(table.sketches) < 2:
        return []
    machine = Interner[str]().codes(one.node for one in table.sketches).astype(np.int64)
    units = [machine] if pipeline_stage is None else [pipeline_stage, machine]
    excess = {stage: Excess.of(table.work[:, row], table.step_ms) for row, stage in enumerate(table.stages)}
    groups = [(stage, one) for stage, work in excess.items() for one in slow_groups(work, units)]
    # All work is steadier than that of one stage: it may show a rank that no stage shows.
    known = [row for _, one in groups for row in one.rows]
    together = Excess.of(table.work.sum(axis=1), table.step_ms).without(known)
    for group in slow_groups(together, units):
        typical = {stage: _typical(work.ms, group) for stage, work in excess.items()}
        groups.append((max(typical, key=typical.__getitem__), group))
    slow = {row for _, one in groups if not one.in_turn for row in one.rows}
    facts = _Description(table, {stage: one.peers for stage, one in excess.items()}, slow)
    return [facts.of(*one) for one in facts.distinct(_by_group(groups))]


def _by_group(groups: Sequence[tuple[str, SlowGroup]]) -> list[tuple[SlowGroup, list[str]]]:
    """The groups, each with the stages in which the same ranks are slow in the same steps."""
    merged: list[tuple[SlowGroup, list[str]]] = []
    for stage, group in groups:
        for other, stages in merged:
            same = group.rows == other.rows and group.steps.is_like(other.steps)
            if same and not group.in_turn and not other.in_turn:
                stages.append(stage)
                break
        else:
            merged.append((group, [stage]))
    return merged


def _typical(excess: Floats, group: SlowGroup) -> float:
    return float(np.median(excess[group.rows][group.when]))


class _Description:
    """What slow ranks do more than their `peers` in each stage, by stage, ms, each of shape (ranks, steps).

    The ranks in `slow`, by position, are not compared with if they are many.
    """

    def __init__(self, table: JobTable, peers: dict[str, Mask], slow: set[int]) -> None:
        self._table = table
        if HALF * len(table.length) <= len(slow) < len(table.length):  # the median may be slow
            others = np.ones(table.length.shape, np.bool_)
            others[list(slow)] = False
            peers = dict.fromkeys(peers, others)
        work = {stage: table.work[:, row] for row, stage in enumerate(table.stages)}
        self._usual = {stage: usual(values, peers[stage]) for stage, values in work.items()}
        self._excess = {stage: values - self._usual[stage] for stage, values in work.items()}
        # Those of the faster half in one stage may be those of the slower half in another.
        compared: Mask = np.all(list(peers.values()), axis=0)
        self._compared = compared | ~compared.any(axis=0)
        rest = table.own_ms - table.work.sum(axis=1)
        self._rest = rest - usual(rest, self._compared)
        self._own = table.own_ms - usual(table.own_ms, self._compared)

    def distinct(self, groups: Sequence[tuple[SlowGroup, list[str]]]) -> list[tuple[SlowGroup, list[str]]]:
        """The groups without those that are a part of a larger one."""
        kept: list[tuple[SlowGroup, list[str]]] = []
        for group, stages in sorted(groups, key=lambda one: -int(one[0].when.sum())):
            if not any(self._is_part(group, stages, *one) for one in kept):
                kept.append((group, stages))
        return kept

    def _is_part(
        self, group: SlowGroup, stages: Sequence[str], other: SlowGroup, names: Sequence[str]
    ) -> bool:
        """Whether a group is some ranks or steps of another, and slow for the same reason."""
        if group.in_turn or other.in_turn or not set(group.rows) <= set(other.rows):
            return False
        outside = int((group.steps.when & ~other.steps.when).sum())
        computes = not set(OF_STAGE) & {*stages, *names}
        inside = group.steps.is_like(other.steps) or (other.steps.grows and outside <= 1)
        inside |= computes and not outside and len(group.rows) == len(other.rows)
        return inside and all(name in names or self._is_slower(self._excess[name], other) for name in stages)

    def of(self, group: SlowGroup, stages: Sequence[str]) -> SlowRanks:
        part = {name: _typical(values, group) for name, values in self._excess.items()}
        if group.in_turn:
            named, excess = stages, self._excess[stages[0]] + self._rest
        else:
            further = [
                name
                for name in self._excess
                if name not in stages and self._is_slower(self._excess[name], group)
            ]
            excess = sum((self._excess[name] for name in (*stages, *further)), start=np.zeros(1))
            rest = self._own - excess
            if self._is_slower(rest, group) or self._is_slower(-rest, group):
                excess = self._own  # it works longer in no stage in particular, too
            excess = np.maximum(excess, 0)
            largest = max(part[name] for name in stages)
            least = max(_NOTABLE * self._table.step_ms, _NOTABLE_PART * largest)
            named = [*stages, *(name for name in further if part[name] > least)]
        ordered = sorted(named, key=lambda name: -part[name])
        straggler = self._straggler(group, {name: part[name] for name in ordered})
        return SlowRanks(straggler, group.rows, np.where(group.when, excess[group.rows], 0))

    def _is_slower(self, excess: Floats, group: SlowGroup) -> bool:
        """Whether the ranks exceed the others by more than these differ by among each other."""
        inside = excess[:, group.steps.when]
        each = np.median(inside, axis=1)
        mine = np.median(inside[group.rows], axis=0)
        typical = float(np.median(mine))
        others = self._compared[:, group.steps.when].mean(axis=1) > 0.5
        others[group.rows] = False
        between = float(spread(each[others], axis=0)) if others.any() else 0.0
        at = np.arange(len(mine))  # what grows varies around a line
        line = np.polyval(np.polyfit(at, mine, 1), at) if group.steps.grows else typical
        over_time = float(spread(mine - line, axis=0)) / np.sqrt(len(mine))
        return bool(typical > LEAST_Z * max(between, over_time))

    def _straggler(self, group: SlowGroup, stages: dict[str, float]) -> Straggler:
        table, rows, steps = self._table, group.rows, group.steps
        first = next(iter(stages))
        usual_ms = {name: float(np.median(self._usual[name][steps.when])) for name in stages}
        ratios = {
            name: each / usual_ms[name] if usual_ms[name] else float("inf") for name, each in stages.items()
        }
        causes = (
            {first: _IN_TURN.get(first, "longer now and then, at other times on each rank")}
            if group.in_turn
            else cause_of_stages(table, group, stages, ratios)
        )
        return Straggler(
            ranks=tuple(sorted(table.sketches[row].rank for row in rows)),
            node="" if group.in_turn else machines_of(table, rows),
            stage=first,
            steps=group.span(table.steps),
            excess_ms=stages[first],
            excess=ratios[first],
            cause=machine_or(causes) or causes[first],
            stages=stages,
            count=group.count,
            period=0 if group.in_turn else steps.period,
            grows=steps.grows,
            in_turn=group.in_turn,
            also=_also(stages, ratios, causes),
        )


def _also(stages: dict[str, float], ratios: dict[str, float], causes: dict[str, str]) -> str:
    """The other stages than the first, those of other causes with these."""
    first, *others = stages
    known = set(causes.values()) if machine_or(causes) else {causes[first]}
    parts: dict[str, list[str]] = {}
    for name in others[:_ALSO]:
        why = "" if causes[name] in known else f" ({causes[name]})"
        known.add(causes[name])
        much = f"{longer(ratios[name], stages[name])}{why}"
        parts.setdefault(much, []).append(stage_in_words(name))
    return ", ".join(f"{_listed(names)} {much}" for much, names in parts.items())


def machines_of(table: JobTable, rows: Sequence[int]) -> str:
    """The machines of which these are all ranks; empty if there is another rank on one."""
    names = list(dict.fromkeys(table.sketches[row].node for row in rows))
    every = {row for row, one in enumerate(table.sketches) if one.node in names}
    return "" if "" in names or every != set(rows) else _listed(names)


def _listed(names: list[str]) -> str:
    """`a, b and c`, or `a, b, c, d and 3 more`."""
    more = len(names) - _MOST_NAMES
    *before, last = [*names[:_MOST_NAMES], f"{more} more"] if more > 0 else names
    return f"{', '.join(before)} and {last}" if before else last


def stage_in_words(stage: str) -> str:
    """`data loading`, `host-bound time`, `forward`."""
    return _STAGE_WORDS.get(stage) or stage.replace("_", " ")


def longer(excess: float, excess_ms: float) -> str:
    """`25% longer`, or in ms where that says more."""
    return f"{f'{excess:.0%}' if excess < 10 else f'{rounded(excess_ms)} ms'} longer"


def ranks_in_words(ranks: Sequence[int], node: str) -> str:
    """`Rank 5`, `Ranks 8-15 (node-1)`, `Ranks 1, 4`; a machine whose ranks they all are is named."""
    return in_runs(ranks).capitalize() + (f" ({node})" if node else "")


def steps_in_words(steps: tuple[int, int] | None, count: int = 0, period: int = 0) -> str:
    """`every step`, `steps 20–40`, `every 10th step (3–43)`, or `7 of steps 3–45`."""
    if steps is None:
        return "every step"
    if steps[0] == steps[1]:
        return f"step {steps[0]}"
    span = f"{steps[0]}–{steps[1]}"
    if period:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(period % 10, "th")
        return f"every {period}{'th' if period % 100 in (11, 12, 13) else ending} step ({span})"
    return f"{count} of steps {span}" if count else f"steps {span}"


# -- why they are slower

# Thresholds of causes, all shares of the excess; [jobs]: see `slow_groups`.
_ALIKE = 0.35  # kernels that differ by less are slower alike; [jobs]
_BY_OTHERS = 0.5  # if waiting for a core explains as much, it is the largest cause
_EXPLAINED = 0.3  # of less, kernels are no explanation; [jobs]
_LEAST_KERNELS = 3  # of fewer, nothing shows that all are slower
OF_STAGE = {"data_loading": "its batches arrive late", "host": "its CPU launches work later than the others'"}
_DEVICE, _CPU = "slower device (all kernels alike)", "slower CPU (all operators alike)"
_MACHINE = "slower machine (its CPU launches later, and all kernels take longer alike)"


def cause_of_stages(
    table: JobTable, group: SlowGroup, stages: Mapping[str, float], ratios: Mapping[str, float]
) -> dict[str, str]:
    """The cause of each stage; those that compute have one."""
    computing = [name for name in stages if name not in OF_STAGE]
    causes = {name: OF_STAGE[name] for name in stages if name in OF_STAGE}
    if computing:
        ratio = ratios[max(computing, key=stages.__getitem__)]
        device = table.sketches[group.rows[0]].device
        others = "" if device else other_processes(table.sketches, group.rows, ratio)
        doubt = "" if device else _perhaps_others(table.sketches, group.rows)
        excess_ms = sum(stages[name] for name in computing)
        cause = others or _Kernels(table, group).cause(excess_ms, ratio, table.received) + doubt
        causes |= dict.fromkeys(computing, cause)
    return causes


def machine_or(causes: Mapping[str, str]) -> str:
    """The one cause of a slow CPU and a slow device, or an empty text."""
    is_device = any(cause.startswith(_DEVICE) for cause in causes.values())
    return _MACHINE if "host" in causes and is_device else ""


def other_processes(sketches: Sequence[Sketch], rows: Sequence[int], excess: float) -> str:
    """The share of a core that slow ranks got, if that is why they take longer; else empty.
    `excess` is how much longer, as a share of what others take."""
    shares = np.array([1.0 if one.core_share is None else one.core_share for one in sketches])
    slow, others = float(np.median(shares[list(rows)])), np.delete(shares, rows)
    if not len(others) or slow >= QUIET:
        return ""
    if float(np.median(others)) / max(slow, 1e-9) - 1 < _BY_OTHERS * excess:
        return ""
    return f"its process got {slow:.0%} of a core, since others used its machine"


def _perhaps_others(sketches: Sequence[Sketch], rows: Sequence[int]) -> str:
    """That other processes may be the cause as well: of a mean share of a core they may have taken
    any part in some steps."""
    shares = [sketches[row].core_share for row in rows]
    share = min((one for one in shares if one is not None), default=1.0)
    return f", or other processes took its core: it got {share:.0%} of one" if share < CANNOT_TELL else ""


class _Kernels:
    def __init__(self, table: JobTable, group: SlowGroup) -> None:
        self._rows, self._sketches, self._grows = group.rows, table.sketches, group.steps.grows
        when = group.steps.when
        self._begins = not (when[0] or group.steps.recurs or group.steps.number == 1)
        self._times = [
            _times(one, np.array(place)[when], bool(when.all()))
            for one, place in zip(table.sketches, table.places, strict=True)
        ]

    def cause(self, excess_ms: float, excess: float, received: Floats) -> str:
        """Why the slow ranks compute longer; `received`: bytes of all-to-all per step, shape (ranks,)."""
        usual = float(np.median(np.delete(received, self._rows))) if len(received) > 1 else 0.0
        tokens = float(np.median(received[self._rows])) / usual if usual > 0 else 1.0
        if tokens > 1 + _ALIKE * min(excess, 1):
            return f"all-to-all brings it {rounded(tokens)} times the bytes of the others: imbalanced expert"
        ratios = self._ratios()
        return self._by_kernels(excess_ms, ratios) if ratios else "its own work takes longer"

    def _by_kernels(self, excess_ms: float, ratios: Mapping[str, tuple[float, float]]) -> str:
        work = "kernel" if self._sketches[self._rows[0]].has_device else "operator"
        longer = self._longer_ms()
        if longer < _EXPLAINED * excess_ms:
            return f"in Python or waiting (no {work} takes longer)"
        values = np.array([ratio for ratio, _ in ratios.values()])
        middle = float(np.median(values))
        least = 1 + (1 - _ALIKE) * (middle - 1)
        are_alike = middle > 1 + LEAST_SHARE and float(np.percentile(values, 25)) > least
        if len(values) >= _LEAST_KERNELS and are_alike:
            falls = ", as if its clock fell in the job" if self._begins else ""
            throttles = ", as one that throttles" if self._grows else falls
            return f"{_DEVICE}{throttles}" if work == "kernel" else _CPU
        extra = {name: (ratio - 1) * each for name, (ratio, each) in ratios.items()}
        name = max(extra, key=extra.__getitem__)
        if extra[name] > _EXPLAINED * longer:
            return f"mostly {name}"
        return f"more work (as many ms per {work}, more {work}s)"

    def _longer_ms(self) -> float:
        pairs = zip(self._sketches, self._times, strict=True)
        total = np.array(
            [sum(one.kernels[name][0] * each for name, each in times.items()) for one, times in pairs]
        )
        return float(np.median(total[self._rows]) - np.median(np.delete(total, self._rows)))

    def _ratios(self) -> dict[str, tuple[float, float]]:
        """For each kernel the median on slow ranks over that on the others, and its time."""
        rows = set(self._rows)
        others = [times for row, times in enumerate(self._times) if row not in rows]
        ratios = {}
        for name in self._times[self._rows[0]]:
            slow = [self._times[row][name] for row in self._rows if name in self._times[row]]
            usual = [times[name] for times in others if name in times]
            if usual and np.median(usual) > 0:
                count, each = self._sketches[self._rows[0]].kernels[name][0], np.median(usual)
                ratios[name] = (float(np.median(slow) / each), count * float(each))
        return ratios


def _times(sketch: Sketch, positions: np.ndarray, every: bool) -> dict[str, float]:
    """The duration of each kernel in some steps, ms; in all steps its median."""
    medians = {name: each for name, (_, each) in sketch.kernels.items()}
    if every:
        return medians
    durations = by_step(sketch.kernels, sketch.kernel_steps).items()
    inside = ((name, values[positions]) for name, values in durations)
    recorded = {name: float(np.nanmedian(each)) for name, each in inside if not np.isnan(each).all()}
    return recorded or medians
