"""What ends a step, learnt from what comes round in the program's loop: the *anchor*.

A step is one turn of the loop. In training it ends when an optimizer has stepped. With several (a
GAN's D and G, a critic stepped five times for each generator step) it ends after the one that
stepped fewest times, and of equals the last in the turn.

Where no optimizer steps, a turn is told by what comes round instead, the surest first: a DataLoader
is asked for the next batch; a model is called after a backward pass; a model is called. Of several
models it is the one called fewest times, and of equals the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

# What sat out this many turns of all the others, or of its own, has left the loop.
PATIENCE = 100


class Kind(IntEnum):
    """What can end a step, the surest last."""

    BARE_CALL = 1
    CALL = 2
    BACKWARD = 3
    BATCH = 4
    OPTIMIZER = 5


_STEPS = {
    Kind.BARE_CALL: "one call of {}, ended by the next",
    Kind.CALL: "one call of {}, ended by the next",
    Kind.BACKWARD: "one turn of forward and backward, ended by the next",
    Kind.BATCH: "one batch of a DataLoader, ended by asking for the next",
}


@dataclass(eq=False)
class Anchor:
    """What comes round in the loop.

    Attributes:
        kind: of which kind it is.
        name: its class.
        turns: how often it came round.
        last: when it last did, on the cycle's clock.
        longest: the longest it took, on that clock.
    """

    kind: Kind
    name: str
    last: int
    turns: int = 0
    longest: int = 0

    def come_round(self, clock: int) -> None:
        """Count one turn."""
        self.turns += 1
        self.longest = max(self.longest, clock - self.last)
        self.last = clock

    @property
    def step_ends_after(self) -> str | None:
        """What a training step ends after: `AdamW.step`."""
        return f"{self.name}.step" if self.kind is Kind.OPTIMIZER else None

    @property
    def step_is(self) -> str | None:
        """What a step is, in words, where no optimizer ends it."""
        return None if self.kind is Kind.OPTIMIZER else _STEPS[self.kind].format(self.name)


class StepCycle:
    """Counts what comes round and finds the anchor among it."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[object, Anchor] = weakref.WeakKeyDictionary()
        self._clock = 0
        self.anchor: Anchor | None = None

    def ends_step(self, thing: object, kind: Kind = Kind.OPTIMIZER) -> bool:
        """Count one turn of `thing`, an optimizer or another; True where it ends a step."""
        self._clock += 1
        self.expect(thing, kind)
        self._known[thing].come_round(self._clock)
        self.anchor = self._choose()
        return self.anchor is self._known[thing]

    def expect(self, thing: object, kind: Kind) -> bool:
        """Say that `thing` is at work and may come round; True where that is news."""
        if thing in self._known:
            return False
        self._known[thing] = Anchor(kind, type(thing).__name__, self._clock)
        return True

    @property
    def anchor_name(self) -> str | None:
        """What a training step ends after: `AdamW.step`."""
        return self.anchor.step_ends_after if self.anchor else None

    @property
    def step_is(self) -> str | None:
        """What a step is, in words, where no optimizer ends it."""
        return self.anchor.step_is if self.anchor else None

    @property
    def is_sure(self) -> bool:
        """Whether nothing surer than the anchor may still come round."""
        kind = self.anchor.kind if self.anchor else min(Kind)
        return not any(one.turns == 0 and one.kind > kind for one in self._in_the_loop())

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self.anchor.turns if self.anchor else 0

    def _choose(self) -> Anchor:
        came = [one for one in self._in_the_loop() if one.turns]
        surest = max(one.kind for one in came)
        alike = [one for one in came if one.kind == surest]
        if surest is Kind.OPTIMIZER:
            return min(alike, key=lambda one: (one.turns, -one.last))
        # A turn ends as the next begins: the first in it is one ahead of those that follow.
        fewest = min(one.turns for one in alike)
        return next(one for one in alike if one.turns <= fewest + 1)

    def _in_the_loop(self) -> Iterator[Anchor]:
        known = list(self._known.values())
        for one in known:
            if self._clock - one.last < PATIENCE * max(len(known), one.longest):
                yield one
