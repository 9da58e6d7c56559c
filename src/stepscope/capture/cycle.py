"""Which optimizer ends a training step, learnt from the order in which they step.

A step is one turn of the training loop. With one optimizer it ends when that steps. With several
(a GAN's D and G, a critic stepped five times for each generator step) it ends after the one that
stepped fewest times, and of equals the last in the turn: the *anchor*.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

# An optimizer that sat out this many turns of all the others has left the loop.
PATIENCE = 100


@dataclass
class _Record:
    steps: int = 0
    last: int = 0


class StepCycle:
    """Counts optimizer steps and finds the anchor among them."""

    def __init__(self) -> None:
        self._records: weakref.WeakKeyDictionary[object, _Record] = weakref.WeakKeyDictionary()
        self._clock = 0
        self._anchor: weakref.ref[object] | None = None

    def ends_step(self, optimizer: object) -> bool:
        """Count one step of `optimizer`; True where it ends a training step."""
        self._clock += 1
        record = self._records.setdefault(optimizer, _Record())
        record.steps += 1
        record.last = self._clock
        anchor = min(self._in_the_loop(), key=lambda o: self._rank(o))
        self._anchor = weakref.ref(anchor)
        return anchor is optimizer

    @property
    def anchor(self) -> object | None:
        """The optimizer that ends a step, as far as is known."""
        return self._anchor() if self._anchor else None

    @property
    def anchor_name(self) -> str | None:
        """What a step ends after: `AdamW.step`."""
        anchor = self.anchor
        return None if anchor is None else f"{type(anchor).__name__}.step"

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        anchor = self.anchor
        return 0 if anchor is None else self._records[anchor].steps

    def _in_the_loop(self) -> list[object]:
        patience = PATIENCE * len(self._records)
        return [o for o, r in self._records.items() if self._clock - r.last < patience]

    def _rank(self, optimizer: object) -> tuple[int, int]:
        record = self._records[optimizer]
        return record.steps, -record.last
