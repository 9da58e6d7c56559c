"""Ranks that are slower than the others, or a link that is: who, when, why, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.ranks.slow_steps import steps_in_words

_STAGE_WORDS = {
    "data_loading": "data loading",
    "zero_grad": "zero grad",
    "host": "host-bound time",
    "other": "time outside of the stages",
}


@dataclass(frozen=True)
class Straggler:
    """Ranks that work longer than the others, or a slow link.

    Attributes:
        ranks: which.
        node: the machine, if they are all the ranks of one.
        stage: in which stage most.
        steps: the first and the last step, None if in (nearly) all steps.
        excess_ms: how much longer than the median rank in that stage, per step concerned.
        excess: the same as a share of the median rank's time in that stage; inf if that is zero.
        cause: in a few words.
        cost_ms: what the job would gain per step, on average over all steps, without this excess.
        groups: of a slow link, its process groups.
        through: what else passes through a slow link, such as `allreduce of world`.
        stages: the excess of every stage that is notably longer, ms, the largest first.
        count: in how many steps, where not in all or all of a stretch; else 0.
        period: every how many steps, where regular; else 0.
        grows: whether the excess grows from step to step.
        in_turn: whether each rank is slow in other steps than the others.
        also: the other stages in words: how much longer, and why if for another reason.
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
    through: tuple[str, ...] = ()
    stages: dict[str, float] = field(default_factory=dict)
    count: int = 0
    period: int = 0
    grows: bool = False
    in_turn: bool = False
    also: str = ""

    @property
    def sentence(self) -> str:
        """Who, where, since when, how much, and why."""
        return f"{self.who}: {self.what}."

    @property
    def who(self) -> str:
        """The ranks in words."""
        if self.in_turn:
            return f"{len(self.ranks)} ranks in turn"
        return ranks_in_words(self.ranks, self.node)

    @property
    def what(self) -> str:
        """In which stage and since when they work longer, how much, and why."""
        much = longer(self.excess, self.excess_ms)
        when = steps_in_words(self.steps, self.count, self.period)
        when = f"about {when}, each," if self.in_turn and self.count else when
        growing = ", more from step to step" if self.grows else ""
        also = f"; also {self.also}" if self.also else ""
        return f"{stage_in_words(self.stage)} {much} in {when}{growing}, {self.cause}{also}"


def stage_in_words(stage: str) -> str:
    """`data loading`, `host-bound time`, `forward`."""
    return _STAGE_WORDS.get(stage, stage)


def longer(excess: float, excess_ms: float) -> str:
    """`25% longer`, or in ms where that says more."""
    return f"{f'{excess:.0%}' if excess < 10 else f'{excess_ms:.3g} ms'} longer"


def ranks_in_words(ranks: Sequence[int], node: str) -> str:
    """`Rank 5`, `Ranks 8–15, all on node-1`, `Ranks 1, 4`."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}" + (f", alone on {node}" if node else "")
    row = ranks[-1] - ranks[0] + 1 == len(ranks)
    names = f"{ranks[0]}–{ranks[-1]}" if row else ", ".join(map(str, ranks))
    return f"Ranks {names}" + (f", all on {node}" if node else "")
