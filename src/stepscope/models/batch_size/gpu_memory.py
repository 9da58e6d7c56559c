"""Whether a step fits a GPU that is not there: its memory on fake tensors, computing nothing, and
what PyTorch's allocator reserves for exactly these allocations, from the first on.

Against eight models on an H200 (64 GiB): memory in use is off by 0.7 % on average and at most 3.8 %
at the largest size that fits, and the size that fits and the one that does not are told apart for
seven. What is not known are workspaces of cuDNN, which asks for less where memory is short.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stepscope.errors import BatchError
from stepscope.facts.roofline.rates import Capacity
from stepscope.models.batch_size.entry import Entry
from stepscope.models.batch_size.entry_profile import Profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.fit import fit_peaks
from stepscope.models.batch_size.measurement import BatchPoint
from stepscope.models.memory.reserved import reserved
from stepscope.record.batch_size.request import RunFacts

# Of cuBLAS, for the threads of forward and backward: PyTorch's default on an H100; before, 8 MiB each.
_WORKSPACES = ((-1, 32 << 20), (-2, 32 << 20))
_ERROR = 0.05  # of memory in use: more than the largest of eight models on an H200, 3.8 %
_IN_16_BITS = 0.12  # the same under autocast, of seven models: an LSTM, which stays in FP32 here
_MOST_TIMES = 64  # the script's own batch size; chosen: its data may not have more samples
_MISS = 0.25  # of the prediction: with so much less memory, a step had fewer samples


def gpu_memory(entry: Entry, capacities: Sequence[Capacity], estimated: Callable[[int], RunFacts]) -> Result:
    """Memory by batch size: at the script's own, twice of it, and where each device is full.

    Args:
        estimated: the facts of an estimate as on a GPU, at a batch size.

    Raises:
        BatchError: if the script does not run on fake tensors, with the reason.
    """
    own = entry.batch
    first, notes = estimated(own), list[str]()
    error = _IN_16_BITS if first["autocast"] else _ERROR
    points = {own: estimated_point(own, first), 2 * own: estimated_point(2 * own, estimated(2 * own))}
    for capacity in capacities:
        result = _result(entry, points, notes, error)
        edge = min(result.fits(capacity)["batch"] or 1, _MOST_TIMES * own)
        if edge in points or notes:
            continue
        try:
            point = estimated_point(edge, estimated(edge))
        except BatchError as failure:
            notes.append(f"larger batch sizes are extrapolated: {failure}")
            continue
        if point.bytes < (1 - _MISS) * result.profile.predict(edge)["bytes"]:
            notes.append(f"a step at batch size {edge:,} has fewer samples: its data may end before")
        else:
            points[edge] = point
    return _result(entry, points, notes, error)


def _result(entry: Entry, points: dict[int, BatchPoint], notes: list[str], error: float) -> Result:
    ordered = tuple(points[size] for size in sorted(points))
    sizes, peaks = [point.batch for point in ordered], [float(point.bytes) for point in ordered]
    memory = replace(fit_peaks(sizes, peaks), own_error=error)
    return Result(entry, Profile(ordered, None, memory, None, {"type": "cuda"}, tuple(notes)))


def estimated_point(batch: int, facts: RunFacts) -> BatchPoint:
    """What an estimate's allocations take, and the least that PyTorch's allocator reserves for them."""
    found = reserved([*_WORKSPACES, *((key, size) for key, size in facts["history"])])
    return BatchPoint(batch, 0.0, found.allocated_bytes, reserved=found.needed_bytes)


def own_size(result: Result, capacity: Capacity) -> dict[str, Any]:
    """The step at the script's own batch size, and whether it fits."""
    batch, usable = result.entry.batch, capacity.usable_bytes
    low, high = result.reserved_range(batch)
    fits = "yes" if high <= usable else "no" if low > usable else "unsure"
    used = result.profile.predict(batch)["bytes"] - result.host_bytes
    return {"batch": batch, "bytes": used, "reserved_range": [round(low), round(high)], "fits": fits}
