"""What the longest kernels and modules of a rank take, over all its steps and step by step."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.facts.annotate.device.collectives import is_communication_call, is_communication_wait
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.trace.trace import Trace

# What bounds a sketch, which is to have 100 kB at most.
_MOST_KERNELS = 100  # names of kernels
_MOST_BY_STEP = 24  # of them with a duration for each step: two bytes a step
_MOST_MODULES = 40  # modules
_NAME_LETTERS = 120  # of a kernel's name
_PATH_LETTERS = 100  # of a module's path
_PERMILLE = 1000  # durations by step are kept as thousandths of the median
_QUANTILES = (0.1, 0.5, 0.9)  # of a module's time in a step


class KernelTimes(NamedTuple):
    """The longest work by name, those first that take longest.

    Attributes:
        kernels: how many a step, and the median duration, ms.
        kernel_spread: of each, the durations that 10 and 90 % are below, ms.
        kernel_steps: the durations of the first of them by step, for `by_step`.
    """

    kernels: dict[str, tuple[float, float]]
    kernel_spread: list[tuple[float, float]]
    kernel_steps: bytes


def work_ns(trace: Trace, rows: Ids) -> Floats:
    """How long events work: on a device all their time, on a CPU that in which they call no other."""
    events = trace.events
    on_device = trace["tracks"]["device"][events["track"][rows]] >= 0
    return np.asarray(np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows]))


def kernel_times(trace: Trace, rows: Ids, duration: Floats, place: Ids, steps: int) -> KernelTimes:
    """The longest work by name; `place`: position of the step of each, -1 for none."""
    names = trace.events.text("name")
    rows, duration, place = rows[place >= 0], duration[place >= 0], place[place >= 0]
    codes = names.codes[rows]
    order = np.lexsort((duration, codes))
    codes, duration, place = codes[order], duration[order], place[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(np.append(starts, len(codes)))
    total = np.add.reduceat(duration, starts) if len(starts) else np.zeros(0)
    longest = np.argsort(-total, kind="stable")[:_MOST_KERNELS]
    low, median, high = (duration[(starts + counts * tenths // 10)[longest]] / 1e6 for tenths in (1, 5, 9))
    kernels = {
        names.values[codes[starts[row]]][:_NAME_LETTERS]: (
            round(float(counts[row] / steps), 3),
            round(float(each), 6),
        )
        for row, each in zip(longest.tolist(), median, strict=True)
    }
    spread = [(round(float(least), 6), round(float(most), 6)) for least, most in zip(low, high, strict=True)]
    parts = [slice(starts[row], starts[row] + counts[row]) for row in longest[:_MOST_BY_STEP]]
    sums = (np.bincount(place[part], duration[part], steps) for part in parts)
    counts_by_step = (np.bincount(place[part], minlength=steps) for part in parts)
    means = [total / np.maximum(count, 1) for total, count in zip(sums, counts_by_step, strict=True)]
    medians = (1e6 * median[:_MOST_BY_STEP]).tolist()
    return KernelTimes(kernels, spread, packed_by_step(means, medians))


def packed_by_step(means: Sequence[Floats], medians: Sequence[float]) -> bytes:
    """Mean durations by step as thousandths of the median, in little room."""
    if not len(means):
        return b""
    ratio = np.array(means) / np.maximum(np.array(medians)[:, None], 1e-9)
    table = np.clip(np.rint(ratio * _PERMILLE), 0, np.iinfo(np.uint16).max).astype("<u2")
    return zlib.compress(table.tobytes())


def by_step(kernels: Mapping[str, tuple[float, float]], packed: bytes) -> dict[str, Floats]:
    """The mean duration of kernels in each step, ms, nan where there is none."""
    if not packed:
        return {}
    count = min(len(kernels), _MOST_BY_STEP)
    table = np.frombuffer(zlib.decompress(packed), "<u2").reshape(count, -1) / _PERMILLE
    table = np.where(table > 0, table, np.nan)
    return {name: table[row] * each for row, (name, (_, each)) in enumerate(list(kernels.items())[:count])}


def operators(trace: Trace) -> Ids:
    """The operators of the CPU's threads, without those that communicate or wait for it."""
    events = trace.events
    name = events.text("name")
    communicates = name.where(is_communication_call) | name.where(is_communication_wait)
    return np.flatnonzero(events.text("category").mask("cpu_op") & ~communicates)


def module_times(
    trace: Trace, rows: Ids, duration: Floats, place: Ids, steps: int
) -> dict[str, tuple[float, float, float]]:
    """The longest modules by path: the time of a step in ms that 10, 50 and 90 % are below.

    Args:
        duration: of each, ns.
        place: position of the step of each, -1 for none.
    """
    modules = trace["modules"]
    module = trace.events["module"][rows]
    inside = (place >= 0) & (module >= 0)
    if not inside.any():
        return {}
    key = module[inside].astype(np.int64) * steps + place[inside]
    own = np.bincount(key, duration[inside], len(modules) * steps).astype(np.float64)
    total = subtree_totals(own.reshape(-1, steps), modules["parent"])
    worked = np.flatnonzero(total.any(axis=1))
    longest = worked[np.argsort(-total[worked].sum(axis=1), kind="stable")[:_MOST_MODULES]]
    times = (np.quantile(total[longest], _QUANTILES, axis=1) / 1e6).T.tolist()
    path = modules.text("path")
    return {
        str(path[row])[:_PATH_LETTERS]: (round(low, 4), round(middle, 4), round(high, 4))
        for row, (low, middle, high) in zip(longest.tolist(), times, strict=True)
    }
