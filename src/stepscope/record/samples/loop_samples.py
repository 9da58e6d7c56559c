"""Which line of the program the training loop's thread executes while steps are recorded.

Profilers see operators; what NumPy and plain Python do between them has no event.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.record.call_sites import LIBRARIES, is_internal
from stepscope.record.samples.stack_sampler import (
    SampledPlace,
    StackSampler,
    StackSamples,
    Unavailable,
    places_of_stack,
)

_NEARLY_ALL = 0.9  # of the samples; chosen: what is around the loop, not what a step calls
_RECORDER = str(Path(__file__).parents[1])
Functions = set[tuple[str, str]]  # name and file


class LoopSamples:
    """Samples the thread that makes it, until stopped; where that is not possible, says why."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._sampler: StackSampler | None = None
        self._lacks = ""
        self._callers = {place[:2] for place in places_of_stack(sys._getframe())}
        with self._noting():
            self._sampler = StackSampler()

    def stop(self) -> dict[str, Any]:
        with self._noting():
            if self._sampler is not None:
                samples = describe(self._sampler.stop(), self._callers)
                return {"version": 1, "thread": self._thread, **samples}
        return {"version": 1, "lacks": self._lacks}

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """A recording without samples is better than none."""
        try:
            yield
        except Unavailable as error:
            self._lacks = str(error)
        except Exception as error:
            self._lacks = f"sampling failed ({type(error).__name__}: {error})"


def describe(samples: StackSamples, callers: Functions) -> dict[str, Any]:
    """Time and line of each sample, and the loop: which of the functions that ran as sampling began."""
    lines = [_line(samples, stack) for stack in samples.stacks]
    kept = [at for at, stack in enumerate(samples.stack) if lines[stack]]
    places: dict[SampledPlace, int] = {}
    first = samples.times_ns[kept[0]] if kept else 0
    numbers = [places.setdefault(line, len(places)) for at in kept if (line := lines[samples.stack[at]])]
    loop = callers & _around(samples, kept)
    return {
        "since_unix_ns": first,
        "after_ns": [samples.times_ns[at] - first for at in kept],
        "place": numbers,
        "places": [{**place._asdict(), "file": str(Path(place.file).absolute())} for place in places],
        "loop": [number for place, number in places.items() if place[:2] in loop],
    }


def _around(samples: StackSamples, kept: list[int]) -> Functions:
    """The functions that nearly all samples are in: also what takes nearly all time of a step."""
    counts: Counter[tuple[str, str]] = Counter()
    for stack, count in Counter(samples.stack[at] for at in kept).items():
        for function in {samples.places[place][:2] for place in samples.stacks[stack]}:
            counts[function] += count
    return {function for function, count in counts.items() if count >= _NEARLY_ALL * len(kept)}


def _line(samples: StackSamples, stack: list[int]) -> SampledPlace | None:
    """The innermost line of the program's own files, else the innermost that is not torch's.

    None where the recorder itself runs, or nothing but torch.
    """
    places = [samples.places[place] for place in stack]
    if places and places[0].file.startswith(_RECORDER):
        return None
    others = [place for place in places if not (is_internal(place.file) or place.file.startswith("<"))]
    own = (place for place in others if not place.file.startswith(LIBRARIES))
    return next(own, others[0] if others else None)
