"""Long stretches of Python that come back in each step: logging, saving, an environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.subject import Rows, Subject
from stepscope.trace.intervals import Intervals

LONG_NS = 1_000_000
_NONE = -1
_EVER = 2**62
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Stretches:
    """Stretches at the same places of each step.

    Attributes:
        spans: when they are.
        longest_ms: the longest of them.
        before, after: the event of its step that ends last before it, and the one that begins first
            after it, -1 where there is none.
    """

    spans: Intervals
    longest_ms: float
    before: int
    after: int


def stretches(subject: Subject, gaps: Intervals) -> Stretches | None:
    """The gaps of 1 ms and more that come back between the same events in each step.

    What comes once, as where the machine lets a process wait, is not meant: the time at a place
    counts if every step spends 1 ms there. Nor are gaps beside which nothing at all was recorded.

    Args:
        subject: the steps.
        gaps: when the training loop runs nothing but Python.

    Returns:
        None where there are none.
    """
    start, end, step = _by_step(subject, gaps)
    if not len(start):
        return None
    before, after = _neighbours(subject, start, end, step)
    names = np.append(subject.events["name"].astype(np.int64), _NONE)
    pairs = np.stack([names[before], names[after]], axis=1)
    place = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    count = len(subject.steps)
    spent = np.bincount(place * count + step, end - start, (place.max() + 1) * count)
    kept = (spent.reshape(-1, count).min(axis=1)[place] >= LONG_NS) & ((before >= 0) | (after >= 0))
    if not kept.any():
        return None
    longest = int(np.argmax(np.where(kept, end - start, 0)))
    return Stretches(
        Intervals(start[kept], end[kept]),
        float(end[longest] - start[longest]) / 1e6,
        int(before[longest]),
        int(after[longest]),
    )


def share(subject: Subject, gaps: Intervals) -> float:
    """The part of a step that some gaps take, the median over the steps."""
    start, end = subject.steps["start_ns"], subject.steps["end_ns"]
    return float(np.median(gaps.within(start, end) / np.maximum(end - start, 1)))


def _by_step(subject: Subject, gaps: Intervals) -> tuple[Times, Times, NDArray[np.intp]]:
    """Long gaps, cut where one step ends and the next begins: start, end and number of the step."""
    begin, finish = subject.steps["start_ns"], subject.steps["end_ns"]
    first = np.searchsorted(begin, gaps.starts, side="right") - 1
    last = np.searchsorted(begin, gaps.ends, side="left") - 1
    count = last - first + 1
    gap = np.repeat(np.arange(len(gaps)), count)
    step = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count, count) + first[gap]
    start = np.maximum(gaps.starts[gap], begin[step])
    end = np.minimum(gaps.ends[gap], finish[step])
    long = end - start >= LONG_NS
    return start[long], end[long], step[long]


def _neighbours(
    subject: Subject, start: Times, end: Times, step: NDArray[np.intp]
) -> tuple[Rows, Rows]:
    """Events of the training loop's thread before and after each gap, in the same step."""
    events, steps = subject.events, subject.steps
    rows = subject.find(category=("cpu_op", "annotation", "runtime", "communication"))
    rows = rows[(events["track"][rows] == subject.loop_track) & ~_is_step(subject, rows)]
    begin, length = events["start_ns"][rows], events["duration_ns"][rows]
    finish = begin + length
    by_end, by_start = np.lexsort((length, finish)), np.lexsort((-length, begin))
    place = np.searchsorted(finish[by_end], start, side="right")
    near = np.append(-_EVER, finish[by_end])[place] > steps["start_ns"][step]
    before = np.where(near, np.append(_NONE, rows[by_end])[place], _NONE)
    place = np.searchsorted(begin[by_start], end)
    near = np.append(begin[by_start], _EVER)[place] < steps["end_ns"][step]
    return before, np.where(near, np.append(rows[by_start], _NONE)[place], _NONE)


def _is_step(subject: Subject, rows: Rows) -> NDArray[np.bool_]:
    steps = subject.events.text("name").where(lambda name: name.startswith("ProfilerStep#"))
    found: NDArray[np.bool_] = steps[rows]
    return found
