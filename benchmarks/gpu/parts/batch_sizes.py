"""From small batches to the edge of memory: doubling, then closing in on the edge.

The memory that PyTorch may take is capped, so that the edge is near enough to be reached in the
time there is, and is that of a common card.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.places import CAP_BYTES
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import Effort
from benchmarks.gpu.truth import truth

_AT_LEAST = 9
_CLOSE = 1.15
_EFFORT = Effort(warmup=3, least=5, most=30, seconds=1.5)


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model at one batch size after the other, each chosen from what was found before."""
    for model in setting.of(MODELS)[: 1 if setting.quick else None]:
        for size in sizes(model, setting, done):
            yield f"{model}/{size}", partial(measure, model, size, setting)


def measure(model: str, size: int, setting: Setting) -> Json:
    """One batch size, under the cap."""
    if setting.on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_BYTES / total))
    found = truth(Case(model, batch_size=size), setting, _EFFORT)
    return {**found, "cap_bytes": CAP_BYTES if setting.on_gpu else None}


def sizes(model: str, setting: Setting, done: Mapping[str, Json]) -> Iterator[int]:
    """Batch sizes for a model; ends where one is not measured, as nothing follows from it."""
    spec = MODELS[model]
    first = 2 if setting.quick else max(1, spec.batch_size // 32)
    largest = 2**_AT_LEAST if setting.quick else spec.largest
    fits: list[int] = []
    too_large: int | None = None
    while size := next_size(fits, too_large, first, largest):
        yield size
        found = done.get(f"{model}/{size}", {}).get("outcome")
        if found == "measured":
            fits.append(size)
        elif found == "out of memory":
            too_large = size
        else:
            return


def next_size(fits: list[int], too_large: int | None, first: int, largest: int) -> int | None:
    """The batch size to try, given those that fit and the smallest that did not; None to stop."""
    known = sorted(fits)
    if not known:
        return None if too_large else first
    if not too_large and 2 * known[-1] <= largest:
        return 2 * known[-1]
    if too_large and too_large > max(_CLOSE * known[-1], known[-1] + 1):
        return _between(known[-1], too_large)
    gaps = [pair for pair in itertools.pairwise(known) if pair[1] > pair[0] + 1]
    if len(known) < _AT_LEAST and gaps:
        return _between(*max(gaps, key=lambda pair: pair[1] / pair[0]))
    return None


def _between(low: int, high: int) -> int:
    """Their geometric mean, strictly between them."""
    return min(high - 1, max(low + 1, round((low * high) ** 0.5)))
