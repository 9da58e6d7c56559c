"""Which line of the program the training loop's thread executes while steps are recorded.

Profilers see operators; what NumPy and plain Python do between them has no event. A thread that
Python cannot see reads the interpreter's memory by copies that may fail, with a table of where each
version of Python keeps its frames (`record/native/known_layouts.h`). It is used where it reads
this thread's own stack as Python itself shows it.

Where a library runs the loop, its callbacks have no line of the program: their place is the
function of the library, at the line that makes them, or else at the one that starts the loop.
"""

from __future__ import annotations

import ctypes
import gc
import linecache
import re
import struct
import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any, NamedTuple

from stepscope.base.compiled.build import LIBRARY, fingerprint
from stepscope.record.call_sites import LIBRARIES, is_internal
from stepscope.record.patch import ignoring, replace
from stepscope.record.unreplaced import os, time

_NEARLY_ALL = 0.9  # of the samples; chosen: what is around the loop, not what a step calls
_RECORDER = str(Path(__file__).parents[1])
_DEFINES = re.compile(r"\s*(class |def |async def |#)")
_WAITS = re.compile(r"(wait|select|lock)$")  # of threading, queue and selectors
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
        with ignoring(Exception, then=self._note):
            self._sampler = StackSampler()
            self._awaited = AwaitedLines()

    def stop(self) -> dict[str, Any]:
        with ignoring(Exception, then=self._note):
            if self._sampler is not None:
                waits = self._awaited.stop() if self._awaited else []
                samples, others = self._sampler.stop(), lines_of_others()  # which go on meanwhile
                found = {"version": 1, "thread": self._thread, "others": others}
                return found | describe(samples, self._callers, waits)
        return {"version": 1, "lacks": self._lacks}

    def _note(self, error: Exception) -> None:
        """A recording without samples is better than none."""
        is_known = isinstance(error, Unavailable)
        self._lacks = str(error) if is_known else f"sampling failed ({type(error).__name__}: {error})"


def lines_of_others() -> list[dict[str, Any]]:
    """The program's lines that other threads execute at the moment, and do not wait."""
    frames = (frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident())
    stacks = [places for places in map(places_of_stack, frames) if not _WAITS.search(places[0].function)]
    lines = (next(filter(_is_own, places), None) for places in stacks)
    return [line._asdict() for line in lines if line]


def describe(samples: StackSamples, callers: Sequence[Function], waits: list[Wait]) -> dict[str, Any]:
    """Time and line of each sample, and the loop: which of the functions that ran as sampling began,
    `callers`, innermost first. `waits` are those of an event loop, in order of time."""
    own = [line_of(samples, stack) for stack in samples.stacks]
    kept = [at for at, stack in enumerate(samples.stack) if own[stack]]
    around = _around(samples, kept)
    loop = {caller for caller in callers if caller in around}
    files = (file for name, file in callers if (name, file) in loop)
    inner = next((file for file in files if not is_internal(file) and not file.startswith(_RECORDER)), "")
    engine = _package(inner)
    lines = [
        line and _with_callers(samples, stack, _callback(samples, stack, line, engine, loop), loop)
        for line, stack in zip(own, samples.stacks, strict=True)
    ]
    places: dict[Calls, int] = {}
    first = samples.times_ns[kept[0]] if kept else 0
    waited = (place_at(waits, samples.times_ns[at]) for at in kept)
    seen = ((wait,) if wait else lines[samples.stack[at]] for wait, at in zip(waited, kept, strict=True))
    return {
        "since_unix_ns": first,
        "after_ns": [samples.times_ns[at] - first for at in kept],
        "place": [_number(places, one) for one in seen if one],
        "places": [_as_json(places, one) for one in places],
        "loop": [number for (place, *_), number in places.items() if place[:2] in loop],
        "awaited": _awaited_share(waits, first, samples.times_ns[kept[-1]] if kept else 0),
    }


def _awaited_share(waits: list[Wait], begin_ns: int, end_ns: int) -> float:
    """The share of some time in which the event loop waits."""
    inside = (min(wait.end_ns, end_ns) - max(wait.begin_ns, begin_ns) for wait in waits)
    return sum(max(ns, 0) for ns in inside) / max(end_ns - begin_ns, 1)


def _with_callers(samples: StackSamples, stack: list[int], line: SampledPlace, loop: Functions) -> Calls:
    """A line, and the program's lines that call it, up to the training loop's."""
    frames = [samples.places[place] for place in stack]
    if line[:2] in loop or line not in frames:
        return (line,)
    around = list(dict.fromkeys(filter(_is_own, frames[frames.index(line) + 1 :])))
    last = next((at for at, frame in enumerate(around) if frame[:2] in loop), -1)
    return (line, *(frame for frame in around[: last + 1] if frame[1:] != line[1:]))  # of a comprehension


def _number(places: dict[Calls, int], calls: Calls) -> int:
    """The position of a line in `places`, where its callers follow."""
    numbers = [places.setdefault(calls[at:], len(places)) for at in range(len(calls))]
    return numbers[0]


def _as_json(places: dict[Calls, int], calls: Calls) -> dict[str, Any]:
    called = {"called": places[calls[1:]]} if len(calls) > 1 else {}
    return {**calls[0]._asdict(), "file": str(Path(calls[0].file).absolute()), **called}


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


def line_of(samples: StackSamples, stack: list[int]) -> SampledPlace | None:
    """The innermost line of the program's own files, else the innermost that is not torch's.

    None where the recorder itself runs, or nothing but torch.
    """
    places = [samples.places[place] for place in stack]
    if places and places[0].file.startswith(_RECORDER):
        return None
    others = [place for place in places if not _is_internal(place)]
    return next(filter(_is_own, others), others[0] if others else None)


def _is_internal(place: SampledPlace) -> bool:
    return is_internal(place.file) or place.file.startswith("<")


def _is_own(place: SampledPlace) -> bool:
    return not (_is_internal(place) or place.file.startswith(LIBRARIES))


# A sample takes 9 to 22 µs of another core (3 to 30 frames, AMD EPYC).
INTERVAL_NS = 500_000  # ns; at 1 ms, a tenth of three steps of 7 ms had no line


class Unavailable(Exception):
    """Stacks cannot be sampled here; the message says why."""


@dataclass(frozen=True)
class StackSamples:
    """What a sampler found."""

    times_ns: Sequence[int]  # when each sample was taken, since 1970
    stack: Sequence[int]  # position in `stacks` of each sample
    stacks: list[list[int]]  # positions in `places`, innermost first
    places: list[SampledPlace]  # the lines that were seen
    child: Sequence[int] = ()  # of each sample: the process that is followed, 0 for this one
    waits: Sequence[int] = ()  # of each sample since a child was followed: 1 if the thread slept


class StackSampler:
    """Samples the stack of the thread that makes it, until stopped.

    The mean time between samples grows with the time that is sampled. Raises Unavailable where the
    library or the system does not allow it.
    """

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self._library = _library()
        if not self._library.stepscope_may_copy():
            raise Unavailable("the system refuses process_vm_readv, as some containers do")
        self._process = os.getpid()
        self._handle, self._found = self._make(interval_ns), _NOTHING
        if not self._handle:
            raise Unavailable(f"stepscope does not know how Python {_version()} stores its frames")
        try:
            self._check()
            self._handle, used, self._found = self._make(interval_ns), self._handle, _NOTHING
            self._library.stepscope_free_sampler(used)
            self._start()
            if not self._runs:
                raise Unavailable("the system refuses another thread")
        except BaseException:
            self._free()
            raise

    def stop(self) -> StackSamples:
        """End sampling; what was found, nothing in a process that was forked meanwhile."""
        return self.so_far(then=self._free)

    def so_far(self, then: Callable[[], object] | None = None) -> StackSamples:
        """What was found until now; sampling goes on, or what is to be done `then` is."""
        if os.getpid() != self._process or not self._handle:
            return _NOTHING
        follows: Callable[[], object] = self._free
        try:
            if self._runs:
                self._library.stepscope_stop_sampler(self._handle)
            samples, follows = self._read(), then or self._start
            return samples
        finally:  # an interrupt loses lines that the library has handed out
            follows()

    def _start(self) -> None:
        """The system may refuse another thread."""
        self._runs = bool(self._library.stepscope_start_sampler(self._handle))

    def follow(self, process: int) -> None:
        """Sample the main thread of a child, too, in turns with others.

        Of a child that was spawned this needs Python 3.11, and the main thread to have made the sampler.
        """
        if os.getpid() == self._process and self._handle:
            self._library.stepscope_follow_child(self._handle, process)

    def _make(self, interval_ns: int) -> int | None:
        types = map(id, (CodeType, str, bytes, FrameType))
        version = sys.version_info[0] << 8 | sys.version_info[1]
        return self._library.stepscope_new_sampler(version, _thread_state(), *types, interval_ns)

    def _check(self) -> None:
        """Raise where the library sees another stack than Python."""
        sample = self._library.stepscope_sample_once
        taken, expected = sample(self._handle), places_of_stack(sys._getframe())  # of one line
        samples = self._read() if taken else None
        if not samples or [samples.places[place] for place in samples.stacks[0]] != expected:
            raise Unavailable(f"this build of Python {_version()} stores its frames in another way")

    def _read(self) -> StackSamples:
        size = ctypes.c_int64()
        found = self._library.stepscope_samples(self._handle, ctypes.byref(size))
        self._found = parse(ctypes.string_at(found, size.value), self._found)
        return self._found

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.stepscope_free_sampler(handle)


_NOTHING = StackSamples((), (), [], [])


def parse(found: bytes, before: StackSamples = _NOTHING) -> StackSamples:
    """What the library found, as in `native/loop_sampler.cpp`: all samples, and further lines and stacks."""
    end = 8 + 4 * 8 * int.from_bytes(found[:8], sys.byteorder)  # bytes of a count, and of four numbers each
    numbers = struct.unpack(f"{end // 8 - 1}q", found[8:end])
    fields = iter(found[end:].split(b"\0")[:-1])
    places = [
        SampledPlace(_decoded(next(fields)), _decoded(next(fields)), int(next(fields)))
        for _ in range(int(next(fields)))
    ]
    stacks = [list(map(int, next(fields).split())) for _ in range(int(next(fields)))]
    times_ns, stack, child, waits = (numbers[at::4] for at in range(4))
    return StackSamples(times_ns, stack, before.stacks + stacks, before.places + places, child, waits)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _thread_state() -> Any:
    """The address of this thread's state; not `ctypes.pythonapi`, which others share."""
    get = ctypes.PyDLL(None).PyThreadState_Get
    get.restype = ctypes.c_void_p
    return get()


@cache
def _library() -> ctypes.CDLL:
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        raise Unavailable("samples need Linux and CPython")
    if set("dt") & set(sys.abiflags):
        raise Unavailable("stacks of a debug or free-threaded build of Python are not sampled")
    if os.environ.get("STEPSCOPE_COMPILED", "").lower() == "off":
        raise Unavailable("the compiled library is switched off by STEPSCOPE_COMPILED")
    try:
        return _loaded()
    except (ImportError, OSError, AttributeError):
        raise Unavailable("the stepscope that recorded it had no compiled library") from None


def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.stepscope_fingerprint.restype = c_uint32
    if library.stepscope_fingerprint() != fingerprint():
        raise OSError("the library was built from other sources")
    pointers = [c_void_p] * 5
    for name, result, arguments in (
        ("new_sampler", c_void_p, [c_uint32, *pointers, c_int64]),
        ("may_copy", c_int, []),
        ("sample_once", c_int, [c_void_p]),
        ("start_sampler", c_int, [c_void_p]),
        ("stop_sampler", None, [c_void_p]),
        ("follow_child", None, [c_void_p, c_int]),
        ("samples", c_void_p, [c_void_p, ctypes.POINTER(c_int64)]),
        ("free_sampler", None, [c_void_p]),
    ):
        function = getattr(library, f"stepscope_{name}")
        function.restype, function.argtypes = result, arguments
    return library


# -- lines of a stack, and of coroutines that wait, which are on no stack while an event loop waits


_DEEPEST = 512  # frames of a stack, from the innermost on, as in C++; coroutines that await each other
_MOST = 20_000  # waits
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")


class SampledPlace(NamedTuple):
    """A line that a frame executes."""

    function: str
    file: str
    line: int


Calls = tuple[SampledPlace, ...]  # a line, and the lines of the program that call it


def places_of_stack(frame: FrameType) -> list[SampledPlace]:
    """The lines of a stack, innermost first, as Python shows them."""
    return [_place_of(caller) for caller, _ in islice(walk_stack(frame), _DEEPEST)]


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
            self._restore = replace(selector, "select", self._noting(selector.select, task))

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
