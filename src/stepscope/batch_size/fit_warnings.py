"""Warnings where a model of run time or memory does not hold."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.batch_size.linear_model import Model
from stepscope.batch_size.measurement import BatchPoint, scatter

TIME_TOLERANCE, MEMORY_TOLERANCE = 0.04, 0.002
FAILED_CHECK = 0.25  # relative error on the held-back point beyond which nothing is suggested
_NOISE = 2  # standard errors within which a line is not wrong


def time_tolerance(points: Sequence[BatchPoint]) -> float:
    """The relative distance from a line that noise explains."""
    return max(TIME_TOLERANCE, _NOISE * scatter(points))


def check_failed(model: Model | None) -> bool:
    """Whether the model mispredicted the point that was held back."""
    error = model.own_error if model else None
    return error is not None and error > FAILED_CHECK


def time_warnings(time: Model, points: Sequence[BatchPoint]) -> list[str]:
    """Sentences about where the points contradict the model of run time."""
    notes = []
    noise = scatter(points)
    miss = time.residual()
    if not time.linear:
        bends = f"it bends at {_listed(time.bends)}" if time.bends else "it grows ever faster"
        notes.append(
            f"run time is not linear in the batch size: {bends} (another kernel is chosen, or a "
            "cache no longer holds the data); predictions use the segment of their batch size"
        )
    elif miss > time_tolerance(points):
        notes.append(
            f"run time deviates from its line by up to {miss:.0%}, more than noise explains "
            f"({noise:.1%}): kernels are chosen by size, or small batches leave the device idle; "
            "measure more batch sizes (--points)"
        )
    if noise > TIME_TOLERANCE:
        notes.append(
            f"step times are noisy (standard error {noise:.0%}): other programs use this machine; "
            "measure again when it is idle"
        )
    if time.slope <= 0:
        notes.append(
            "run time does not grow with the batch size: the device is not saturated, so the limit "
            "of throughput is unknown; start from a larger batch size"
        )
    return [*notes, *_check_warning(time, "run time")]


def memory_warnings(memory: Model) -> list[str]:
    """Sentences about where the points contradict the model of memory."""
    if not memory.linear:
        return [
            "the memory peak moves to another place in the step from batch size "
            f"{memory.pieces[-1].start:.0f} on; predictions use the segment of their batch size",
            *_check_warning(memory, "memory"),
        ]
    miss = memory.residual()
    if miss <= MEMORY_TOLERANCE:
        return _check_warning(memory, "memory")
    return [
        f"memory deviates from its line by up to {miss:.1%}: the peak is not at the same place in "
        "the step at all batch sizes",
        *_check_warning(memory, "memory"),
    ]


def _check_warning(model: Model, quantity: str) -> list[str]:
    if not check_failed(model):
        return []
    return [
        f"the model of {quantity} mispredicted the held-back batch size by {model.own_error:.0%}: "
        "no batch size is suggested; choose among those measured"
    ]


def _listed(batches: Sequence[float]) -> str:
    *others, last = (f"{batch:.0f}" for batch in batches)
    return f"{', '.join(others)} and {last}" if others else last
