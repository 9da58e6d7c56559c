"""Measurements of one run: for each part of a step, one value per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.arrays import Floats, Ids, IntArray

Key = tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """Values of the parts of one kind: stages, modules, operators, kernels.

    Attributes:
        times: time in each step by key, ns, float64, shape (steps,).
        counts: occurrences in each step by key, float64, shape (steps,); empty if meaningless.
    """

    times: Mapping[Key, Floats]
    counts: Mapping[Key, Floats] = field(default_factory=dict)


def sample(keys: Sequence[Key], key: Ids, step: Ids, time: IntArray, steps: int) -> Sample:
    """Add up the time of events by key and step.

    Args:
        keys: names of the keys.
        key: number of each event's key, int64, shape (events,).
        step: number of each event's step, 0 to steps - 1, int64, shape (events,).
        time: ns, shape (events,).
        steps: how many steps there are.
    """
    shape = (len(keys), steps)
    bins, size = key * steps + step, len(keys) * steps
    times = np.bincount(bins, time, size).reshape(shape)
    counts = np.bincount(bins, minlength=size).astype(np.float64).reshape(shape)
    return Sample(
        {name: times[number] for number, name in enumerate(keys)},
        {name: counts[number] for number, name in enumerate(keys)},
    )
