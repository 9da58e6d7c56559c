"""A clear word where a model of run time or memory does not hold."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.predict.linear import Model
from stepscope.predict.measured import Point, scatter

TIME_TOLERANCE, MEMORY_TOLERANCE = 0.04, 0.002
_NOISE = 2  # standard errors within which a line is not wrong


def time_tolerance(points: Sequence[Point]) -> float:
    """How far a time may lie from a line that is right, relative."""
    return max(TIME_TOLERANCE, _NOISE * scatter(points))


def time_doubts(time: Model, points: Sequence[Point]) -> list[str]:
    """What the points say against the model of run time, sentences."""
    notes = []
    noise = scatter(points)
    miss = time.residual()
    if not time.linear:
        bends = f"it bends at {_listed(time.bends)}" if time.bends else "a sample takes ever longer"
        notes.append(
            f"run time is not one line over the batch size, {bends} (another kernel is chosen, or "
            "a cache no longer holds the data); predictions use the line that their batch size "
            "lies on"
        )
    elif miss > time_tolerance(points):
        notes.append(
            f"run time misses its line by up to {miss:.0%}, more than noise explains "
            f"({noise:.1%}): kernels are chosen by size, or small batches leave the device idle; "
            "measure more points (--points)"
        )
    if noise > TIME_TOLERANCE:
        notes.append(
            f"step times scatter (standard error {noise:.0%} of the time): something else uses "
            "this machine; measure again when it is quiet"
        )
    if time.slope <= 0:
        notes.append(
            "run time does not grow with the batch size: the device is not filled yet, and no "
            "limit can be told; start from a larger batch size"
        )
    return notes


def memory_doubts(memory: Model) -> list[str]:
    """The same of the model of memory."""
    if not memory.linear:
        return [
            "the memory peak moves to another place in the step from batch size "
            f"{memory.pieces[-1].start:.0f} on; predictions use the piece that theirs lies in"
        ]
    miss = memory.residual()
    if miss <= MEMORY_TOLERANCE:
        return []
    return [
        f"memory misses its line by up to {miss:.1%}: the peak is not at the same place in the "
        "step at all batch sizes"
    ]


def _listed(batches: Sequence[float]) -> str:
    *others, last = (f"{one:.0f}" for one in batches)
    return f"{', '.join(others)} and {last}" if others else last
