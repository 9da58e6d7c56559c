"""What the longest kernels of a rank take, over all its steps and step by step."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.annotate.names.communication_names import (
    is_communication_call,
    is_communication_wait,
)
from stepscope.arrays import Floats, Ids
from stepscope.trace.trace import Trace

_MOST_KERNELS = 100
_MOST_BY_STEP = 24
_NAME_LETTERS = 120
_PERMILLE = 1000


def kernel_times(
    trace: Trace, rows: Ids, place: Ids, steps: int
) -> tuple[dict[str, tuple[float, float]], bytes]:
    """The longest work by name: how many a step, the median duration in ms, and it by step.

    Args:
        trace: an annotated trace of one rank.
        rows: events.
        place: position of the step of each, -1 for none.
        steps: how many.

    Returns:
        The work, those first that take longest, and the durations of the first of them by step,
        for `by_step`.
    """
    events = trace.events
    names = events.text("name")
    rows, place = rows[place >= 0], place[place >= 0]
    on_device = trace["tracks"]["device"][events["track"][rows]] >= 0
    duration = np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows])
    codes = names.codes[rows]
    order = np.lexsort((duration, codes))
    codes, duration, place = codes[order], duration[order], place[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(np.append(starts, len(codes)))
    total = np.add.reduceat(duration, starts) if len(starts) else np.zeros(0)
    median = duration[starts + counts // 2] if len(starts) else total
    longest = np.argsort(-total, kind="stable")[:_MOST_KERNELS]
    found = {
        names.values[codes[starts[row]]][:_NAME_LETTERS]: (
            round(float(counts[row] / steps), 3), round(float(median[row] / 1e6), 6),
        )
        for row in longest
    }  # fmt: skip
    parts = [slice(starts[row], starts[row] + counts[row]) for row in longest[:_MOST_BY_STEP]]
    means = [_means(duration[part], place[part], steps) for part in parts]
    return found, packed_by_step(means, [float(median[row]) for row in longest[:_MOST_BY_STEP]])


def _means(duration: Floats, place: Ids, steps: int) -> Floats:
    """The mean duration in each step, 0 where there is none."""
    total = np.bincount(place, duration, steps)
    result: Floats = total / np.maximum(np.bincount(place, minlength=steps), 1)
    return result


def packed_by_step(means: Sequence[Floats], medians: Sequence[float]) -> bytes:
    """Mean durations by step as thousandths of the median, in little room.

    Args:
        means: of each kernel, each of shape (steps,).
        medians: of each kernel.
    """
    if not len(means):
        return b""
    ratio = np.array(means) / np.maximum(np.array(medians)[:, None], 1e-9)
    table = np.clip(np.rint(ratio * _PERMILLE), 0, np.iinfo(np.uint16).max).astype("<u2")
    return zlib.compress(table.tobytes())


def by_step(kernels: Mapping[str, tuple[float, float]], packed: bytes) -> dict[str, Floats]:
    """The mean duration of kernels in each step, ms, nan where there is none.

    Args:
        kernels, packed: as `kernel_times` gives them.
    """
    if not packed:
        return {}
    count = min(len(kernels), _MOST_BY_STEP)
    table = np.frombuffer(zlib.decompress(packed), "<u2").reshape(count, -1) / _PERMILLE
    table = np.where(table > 0, table, np.nan)
    return {
        name: table[row] * each
        for row, (name, (_, each)) in enumerate(list(kernels.items())[:count])
    }


def operators(trace: Trace) -> Ids:
    """The operators of the CPU's threads, without those that communicate or wait for it."""
    events = trace.events
    communicates = events.text("name").where(_communicates)
    return np.flatnonzero(events.text("category").mask("cpu_op") & ~communicates)


def _communicates(name: str) -> bool:
    return is_communication_call(name) or is_communication_wait(name)
