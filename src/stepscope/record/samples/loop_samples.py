"""Which line of the program the training loop's thread executes while steps are recorded.

Profilers see operators; what NumPy and plain Python do between them has no event.

Where a library runs the loop, its callbacks have no line of the program: their place is the
function of the library, at the line that makes them, or else at the one that starts the loop.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.record.call_sites import LIBRARIES, is_internal
from stepscope.record.samples.awaited_lines import AwaitedLines, Wait, place_at
from stepscope.record.samples.stack_sampler import (
    SampledPlace,
    StackSampler,
    StackSamples,
    Unavailable,
    places_of_stack,
)

_NEARLY_ALL = 0.9  # of the samples; chosen: what is around the loop, not what a step calls
_RECORDER = str(Path(__file__).parents[1])
_DEFINES = re.compile(r"\s*(class |def |async def |#)")
Function = tuple[str, str]  # name and file
Functions = set[Function]


class LoopSamples:
    """Samples the thread that makes it, until stopped; where that is not possible, says why."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._sampler: StackSampler | None = None
        self._lacks = ""
        self._callers = [place[:2] for place in places_of_stack(sys._getframe())]
        self._awaited: AwaitedLines | None = None
        with self._noting():
            self._sampler = StackSampler()
            self._awaited = AwaitedLines()

    def stop(self) -> dict[str, Any]:
        with self._noting():
            if self._sampler is not None:
                waits = self._awaited.stop() if self._awaited else []
                samples = describe(self._sampler.stop(), self._callers, waits)
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


def describe(samples: StackSamples, callers: Sequence[Function], waits: list[Wait]) -> dict[str, Any]:
    """Time and line of each sample, and the loop: which of the functions that ran as sampling began.

    Args:
        callers: these functions, innermost first.
        waits: of an event loop, in order of time.
    """
    own = [_line(samples, stack) for stack in samples.stacks]
    kept = [at for at, stack in enumerate(samples.stack) if own[stack]]
    around = _around(samples, kept)
    loop = {caller for caller in callers if caller in around}
    inner = next((file for name, file in callers if (name, file) in loop and not _is_ours(file)), "")
    engine = _package(inner)
    lines = [
        line and _callback(samples, stack, line, engine, loop)
        for line, stack in zip(own, samples.stacks, strict=True)
    ]
    places: dict[SampledPlace, int] = {}
    first = samples.times_ns[kept[0]] if kept else 0
    seen = (place_at(waits, samples.times_ns[at]) or lines[samples.stack[at]] for at in kept)
    numbers = [places.setdefault(line, len(places)) for line in seen if line]
    return {
        "since_unix_ns": first,
        "after_ns": [samples.times_ns[at] - first for at in kept],
        "place": numbers,
        "places": [{**place._asdict(), "file": str(Path(place.file).absolute())} for place in places],
        "loop": [number for place, number in places.items() if place[:2] in loop],
    }


def _is_ours(file: str) -> bool:
    return is_internal(file) or file.startswith(_RECORDER)


def _package(file: str) -> str:
    """The folder of the installed package that a file is in; empty for the program's own files."""
    root = next((root for root in LIBRARIES if file.startswith(root)), "")
    inner = file[len(root) :].lstrip("/\\").removeprefix("site-packages/") if root else ""
    return file[: -len(inner)] + re.split(r"[/\\]", inner)[0] if inner else ""


def _callback(
    samples: StackSamples, stack: list[int], line: SampledPlace, engine: str, loop: Functions
) -> SampledPlace:
    """The line, or the function of the library that runs the loop, which was called by it."""
    if not engine or line[:2] not in loop or line.file.startswith(LIBRARIES):
        return line
    frames = [samples.places[place] for place in stack]
    inner = [frame for frame in frames if frame.file.startswith(engine)]
    if not inner or inner[0][:2] in loop:
        return line
    around = {_class_of(function) for function, _ in loop}
    for frame in inner:
        if _class_of(frame.function) not in around and (made := _making(frame.function, line.file)):
            return SampledPlace(frame.function, line.file, made)
    return SampledPlace(inner[0].function, line.file, line.line)


def _class_of(function: str) -> str:
    return function.partition(".")[0]


@cache
def _making(function: str, file: str) -> int:
    """The line of a file that makes an object of the function's class; 0 if none does."""
    made = re.compile(rf"\b{re.escape(_class_of(function))}\(")
    lines = enumerate(linecache.getlines(file), 1)
    return next((number for number, text in lines if made.search(text) and not _DEFINES.match(text)), 0)


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
