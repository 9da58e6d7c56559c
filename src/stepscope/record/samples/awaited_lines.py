"""Lines of a stack, and of coroutines that wait, which are on no stack while an event loop waits.

The loop waits in its selector. Around that call, in recorded steps only, the line is noted at which
the task that trains is suspended: the innermost one of the program's own files.
"""

from __future__ import annotations

import gc
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from stepscope.record.call_sites import LIBRARIES

_DEEPEST = 512  # frames of a stack, from the innermost on, as in C++; coroutines that await each other
_MOST = 20_000  # waits
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")


class SampledPlace(NamedTuple):
    """A line that a frame executes."""

    function: str
    file: str
    line: int


def places_of_stack(frame: FrameType | None) -> list[SampledPlace]:
    """The lines of a stack, innermost first, as Python shows them."""
    places: list[SampledPlace] = []
    while frame is not None and len(places) < _DEEPEST:
        places.append(_place_of(frame))
        frame = frame.f_back
    return places


def _place_of(frame: FrameType) -> SampledPlace:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    return SampledPlace(_readable(name), _readable(code.co_filename), frame.f_lineno or 0)


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class Wait(NamedTuple):
    """Time since 1970 in which the event loop waited, and the line that awaits."""

    begin_ns: int
    end_ns: int
    place: SampledPlace


class AwaitedLines:
    """Notes what the running task awaits, until stopped; nothing where no event loop runs."""

    def __init__(self) -> None:
        self._waits: list[Wait] = []
        self._restore: Callable[[], None] = lambda: None
        asyncio = sys.modules.get("asyncio")
        loop: Any = asyncio._get_running_loop() if asyncio else None
        task = asyncio.current_task(loop) if asyncio and loop else None
        if task is not None and (selector := getattr(loop, "_selector", None)) is not None:
            selector.select = self._noting(selector.select, task)
            self._restore = lambda: vars(selector).pop("select", None)

    def stop(self) -> list[Wait]:
        self._restore()
        return self._waits

    def _noting(self, original: Callable[..., Any], task: Any) -> Callable[..., Any]:
        def select(timeout: float | None = None) -> Any:
            place = _awaiting(task) if timeout != 0 and len(self._waits) < _MOST else None
            begun = time.time_ns()
            result = original(timeout)
            if place:
                self._waits.append(Wait(begun, time.time_ns(), place))
            return result

        return select


def place_at(waits: list[Wait], moment_ns: int) -> SampledPlace | None:
    """What is awaited at a moment, if the loop waits then."""
    at = bisect_right(waits, moment_ns, key=lambda wait: wait.begin_ns) - 1
    return waits[at].place if at >= 0 and moment_ns < waits[at].end_ns else None


def _awaiting(task: Any) -> SampledPlace | None:
    """The innermost line of the program's own at which a task is suspended."""
    own = [frame for frame in _frames(task.get_coro()) if not frame.f_code.co_filename.startswith(LIBRARIES)]
    return _place_of(own[-1]) if own else None


def _frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of coroutines and generators that await each other, outermost first."""
    for _ in range(_DEEPEST):
        frame = _first(awaited, _FRAMES)
        if frame is None:  # the step of an asynchronous generator, which only refers to it
            awaited = next((inner for inner in gc.get_referents(awaited) if _first(inner, _FRAMES)), None)
            frame = _first(awaited, _FRAMES)
        if frame is None:
            return
        yield frame
        awaited = _first(awaited, _AWAITED)
        if awaited is None:
            return


def _first(holder: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(holder, name, None)) is not None), None)
