"""Which steps of a run are unusually long: single ones, and stretches.

There is no fixed factor: what is unusual follows from the run's own noise, at a stated rate of false
alarms. Steps of equal work are noise with any tail, and may depend on their neighbors.

- Stretches lie between changes of level: Pettitt's test of ranks (1979, Applied Statistics 28), in
  halves, with the variance that dependent neighbors have. A level is slow if it exceeds the usual
  one by more than medians of steps vary by. Runs above the upper quartile are stretches, too.
- Single steps: the tail of the excess over the median is taken as a power law, whose exponent comes
  from the spacings of its largest values (of a power law, k ln(x_k / x_k+1) is exponential: Rényi).
  A gap in the tail that is too wide for that, and steps beyond what the law allows, are outlying.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Mask, Rows

RATE = 0.001  # false alarms of each test in a run, if its noise is as assumed
FEWEST = 60  # steps that can be judged
_TAIL = 0.1  # of the steps
_UNSURE = 3.0  # standard errors that the exponent may be larger than estimated
SHORTEST = 10  # steps between two changes of level
_ALIKE = 2.0  # times the excess over the usual; chosen: levels that differ by more are two stretches
_NEARLY_ALL = 0.95  # of the steps around a peak; chosen: single ones may be as long
_MOST_DEPTH = 8  # of halves; each has a level of its own
BLOCK = 20  # steps whose medians show slow noise
_MAD = 1.4826  # standard deviations of a normal distribution in a median absolute deviation
_MOST_DEPENDENT = 0.9  # correlation of neighbors

Span = tuple[int, int]  # positions of its first and last step


class SlowParts(NamedTuple):
    """The usual length of a step; slow stretches by their first and last position; slow steps elsewhere."""

    usual: float
    stretches: list[Span]
    single: Mask


def slow_parts(lengths: Floats) -> SlowParts:
    """Judge the lengths of consecutive steps, in any unit."""
    if len(lengths) < FEWEST:
        nothing = np.zeros(len(lengths), bool)
        return SlowParts(float(np.median(lengths)) if len(lengths) else 0.0, [], nothing)
    edges = [0, *_changes(lengths, 0, _MOST_DEPTH), len(lengths)]
    counts = np.diff(edges)
    medians = np.array([np.median(part) for part in np.split(lengths, edges[1:-1])])
    levels = np.repeat(medians, counts)
    rest = lengths - levels
    blocks = rest[: len(rest) // BLOCK * BLOCK].reshape(-1, BLOCK)
    slow_noise = _MAD * float(np.median(np.abs(np.median(blocks, axis=1))))
    margin = math.sqrt(2 * math.log(len(rest) / RATE)) * slow_noise
    usual = float(medians[counts >= min(BLOCK, counts.max())].min())
    slow = levels > usual + margin
    for first, end in runs_of(rest > np.quantile(rest, 0.75)):
        if end - first >= math.log(len(rest) / RATE) / math.log(4) and np.median(rest[first:end]) > margin:
            slow[first:end] = True  # too many for independent steps
    outlying = np.zeros(len(rest), bool)
    outlying[~slow] = rest[~slow] > tail_limit(rest[~slow])
    excess = medians - usual
    cuts = [
        edge
        for edge, *sides in zip(edges[1:-1], excess, excess[1:], strict=False)
        if min(sides) > margin and max(sides) > _ALIKE * min(sides)
    ]
    runs = runs_of(slow | outlying).tolist()
    peaks = [edge for run in runs for edge in _edges_of_peaks(lengths - usual, *run)]
    cuts = sorted({*peaks, *(at for at in cuts if all(abs(at - edge) >= SHORTEST for edge in peaks))})
    runs = [part for first, end in runs for part in cut(first, end, cuts)]
    long = [_without_usual_ends(lengths, usual, *run) for run in runs if run[1] - run[0] >= SHORTEST]
    for first, last in long:
        outlying[first : last + 1] = False
    return SlowParts(usual, long, outlying)


def cut(first: int, end: int, cuts: Sequence[int]) -> Iterable[tuple[int, int]]:
    """A run of steps, in parts between the cuts inside of it."""
    return pairwise([first, *(at for at in cuts if first < at < end), end])


def _edges_of_peaks(excess: Floats, first: int, end: int) -> list[int]:
    """Where steps in a row exceed the usual by far more than a run does elsewhere: ranks may not show it."""
    part = excess[first:end]
    peaks = runs_of(part > _ALIKE * max(np.median(part), 0.0))
    peaks = peaks[np.diff(peaks)[:, 0] >= SHORTEST]
    rest = np.delete(part, [at for peak in peaks for at in range(*peak)])
    least = _ALIKE**2 * np.quantile(rest, _NEARLY_ALL)  # as the rest may itself be two stretches
    return [first + int(edge) for peak in peaks if np.median(part[slice(*peak)]) > least for edge in peak]


def _without_usual_ends(lengths: Floats, usual: float, first: int, end: int) -> tuple[int, int]:
    """A stretch from its first to its last step that is nearer to its median than to the usual."""
    steps = lengths[first:end]
    nearer = np.flatnonzero(steps > (usual + np.median(steps)) / 2)
    return (first + int(nearer[0]), first + int(nearer[-1])) if len(nearer) else (first, end - 1)


def tail_limit(excess: Floats) -> float:
    """The excess over the usual value beyond which a step is outlying; infinite where nothing is."""
    top = np.sort(excess)[::-1][: math.ceil(_TAIL * len(excess)) + 1]
    top = top[top > 0]
    if len(top) < 6:  # chosen: fewer have no shape
        return math.inf
    ranks = np.arange(1, len(top))
    spacings = ranks * np.log(top[:-1] / top[1:])
    exponent = float(np.median(spacings)) / math.log(2) * (1 + _UNSURE / math.sqrt(len(ranks)))
    if exponent <= 0:
        return math.inf
    allowed = exponent * math.log(len(ranks) / RATE)
    wide = np.flatnonzero(spacings > allowed)
    limit = float(top[-1]) * math.exp(min(allowed, 700.0))
    return min(limit, math.nextafter(float(top[wide[-1]]), 0)) if len(wide) else limit


def runs_of(mask: Mask) -> Rows:
    """Where consecutive steps begin and end, in pairs."""
    return np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]]))).reshape(-1, 2)


def _changes(lengths: Floats, offset: int, depth: int) -> list[int]:
    """Where the level changes, in order. P(sup of a Brownian bridge > c) is 2 exp(-2 c²)."""
    count = len(lengths)
    if count < 2 * SHORTEST or not depth:
        return []
    ranks = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") - (count - 1) / 2
    sums = np.abs(np.cumsum(ranks)[SHORTEST - 1 : -SHORTEST])
    split = int(np.argmax(sums)) + SHORTEST
    inside = np.concatenate([ranks[:split] - ranks[:split].mean(), ranks[split:] - ranks[split:].mean()])
    dependence = float(np.clip(np.corrcoef(inside[:-1], inside[1:])[0, 1], 0, _MOST_DEPENDENT))
    spread = math.sqrt((count**2 - 1) / 12 * (1 + dependence) / (1 - dependence) * count)
    if sums.max() / spread <= math.sqrt(math.log(2 / RATE) / 2):
        return []
    at = offset + split
    return [*_changes(lengths[:split], offset, depth - 1), at, *_changes(lengths[split:], at, depth - 1)]
