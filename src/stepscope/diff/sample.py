"""What was measured of one run: for each part of a step, one value for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """Values of the parts of one kind: stages, modules, operators, kernels.

    Attributes:
        times: for each key the time in each step, ns, float64, shape (steps,).
        counts: for each key how often in each step, float64, shape (steps,); empty where it means
            nothing.
    """

    times: Mapping[Key, Floats]
    counts: Mapping[Key, Floats] = field(default_factory=dict)


def sample(
    keys: Sequence[Key], key: Ids, step: Ids, time: NDArray[np.integer], steps: int
) -> Sample:
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
        {one: times[number] for number, one in enumerate(keys)},
        {one: counts[number] for number, one in enumerate(keys)},
    )
