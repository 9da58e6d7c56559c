"""How much longer ranks work than those that are not slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.arrays import Floats, Mask
from stepscope.ranks.usual_work import LEAST_SHARE, LEAST_SPREADS, noise_of, spread, usual

_PAIR_OF_UNITS = 2


@dataclass(frozen=True, eq=False)
class ExcessWork:
    """How much longer ranks work than those that are not slow, ms.

    Attributes:
        excess: shape (ranks, steps).
        noise: what ranks that are not slow differ by, shape (steps,).
        others: which ranks are compared with, shape (ranks, steps).
        least_ms: what is less is not slow.
    """

    excess: Floats
    noise: Floats
    others: Mask
    least_ms: float

    @classmethod
    def of(cls, values: Floats, others: Mask, step_ms: float) -> ExcessWork:
        """Of what each rank takes, shape (ranks, steps), with steps of a length of `step_ms`."""
        excess = values - usual(values, others)
        return cls(excess, noise_of(values, excess, others), others, LEAST_SHARE * step_ms)

    def without(self, rows: Sequence[int]) -> ExcessWork:
        """Some ranks work no longer."""
        excess = self.excess.copy()
        excess[list(rows)] = 0
        return replace(self, excess=excess)

    @cached_property
    def slow(self) -> Mask:
        """Whether a rank is slow in a step, shape (ranks, steps)."""
        result: Mask = self.excess > np.maximum(self.least_ms, LEAST_SPREADS * self.noise)
        return result

    def of_units(self, units: Sequence[list[int]]) -> Iterator[tuple[list[int], Floats, Mask]]:
        """For each unit its ranks, and the excess of its median rank, and whether that is slow.

        The median rank of several is steadier than one, but units may differ by more than ranks.

        Args:
            units: the ranks of each.
        """
        if not units:
            return
        middle = np.array([np.median(self.excess[rows], axis=0) for rows in units])
        healthy = np.array([self.others[rows].mean(axis=0) > 0.5 for rows in units])
        between = np.zeros(self.noise.shape)
        if len(units) > _PAIR_OF_UNITS:
            known = healthy.any(axis=0)
            between[known] = spread(np.where(healthy, middle, np.nan)[:, known], axis=0)
        for rows, excess in zip(units, middle, strict=True):
            noise = np.maximum(self.noise / np.sqrt(len(rows)), between)
            yield rows, excess, excess > np.maximum(self.least_ms, LEAST_SPREADS * noise)
