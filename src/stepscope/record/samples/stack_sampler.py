"""Samples a thread's Python stack with the compiled library, from a thread that Python cannot see.

The library reads the interpreter's memory by copies that may fail, with a table of where each
version of Python keeps its frames (`record/native/known_layouts.h`). It is used where it reads
this thread's own stack as Python itself shows it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.base.compiled.build import LIBRARY, fingerprint

if TYPE_CHECKING:
    import ctypes

INTERVAL_NS = 1_000_000  # 1 ms; chosen: several samples in most steps
_DEEPEST = 512  # frames of a stack, from the innermost on, as in C++


class Unavailable(Exception):
    """Stacks cannot be sampled here; the message says why."""


class SampledPlace(NamedTuple):
    """A line that a frame executes."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class StackSamples:
    """What a sampler found."""

    times_ns: list[int]  # when each sample was taken, since 1970
    stack: list[int]  # position in `stacks` of each sample
    stacks: list[list[int]]  # positions in `places`, innermost first
    places: list[SampledPlace]  # the lines that were seen


class StackSampler:
    """Samples the stack of the thread that makes it, until stopped.

    Args:
        interval_ns: the mean time between samples; it grows with the time that is sampled.

    Raises:
        Unavailable: the library or the system does not allow it here.
    """

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self._library = _library()
        if not self._library.stepscope_may_copy():
            raise Unavailable("the system refuses process_vm_readv, as some containers do")
        self._process = os.getpid()
        self._handle = self._make(interval_ns)
        if not self._handle:
            raise Unavailable(f"stepscope does not know how Python {_version()} stores its frames")
        try:
            self._check()
            self._handle, used = self._make(interval_ns), self._handle
            self._library.stepscope_free_sampler(used)
            if not self._library.stepscope_start_sampler(self._handle):
                raise Unavailable("the system refuses another thread")
        except BaseException:
            self._free()
            raise

    def stop(self) -> StackSamples:
        """End sampling; what was found, nothing in a process that was forked meanwhile."""
        if os.getpid() != self._process or not self._handle:
            return StackSamples([], [], [], [])
        self._library.stepscope_stop_sampler(self._handle)
        samples = self._read()
        self._free()
        return samples

    def _make(self, interval_ns: int) -> int | None:
        types = map(id, (CodeType, str, bytes, FrameType))
        version = sys.version_info[0] << 8 | sys.version_info[1]
        made: int | None = self._library.stepscope_new_sampler(version, _thread_state(), *types, interval_ns)
        return made

    def _check(self) -> None:
        """Raise where the library sees another stack than Python."""
        sample = self._library.stepscope_sample_once
        taken, expected = sample(self._handle), places_of_stack(sys._getframe())  # of one line
        samples = self._read() if taken else None
        if not samples or [samples.places[place] for place in samples.stacks[0]] != expected:
            raise Unavailable(f"this build of Python {_version()} stores its frames in another way")

    def _read(self) -> StackSamples:
        import ctypes

        size = self._library.stepscope_samples(self._handle, None, 0)
        text = ctypes.create_string_buffer(size)
        self._library.stepscope_samples(self._handle, text, size)
        return parse(text.raw)

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.stepscope_free_sampler(handle)


def parse(text: bytes) -> StackSamples:
    """What the library found: fields that end with a zero byte, as in `native/loop_sampler.cpp`."""
    fields = iter(text.split(b"\0")[:-1])
    places = [
        SampledPlace(_decoded(next(fields)), _decoded(next(fields)), int(next(fields)))
        for _ in range(int(next(fields)))
    ]
    stacks = [list(map(int, next(fields).split())) for _ in range(int(next(fields)))]
    rest = list(map(int, fields))
    return StackSamples(rest[::2], rest[1::2], stacks, places)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def places_of_stack(frame: FrameType | None) -> list[SampledPlace]:
    """The lines of a stack, innermost first, as Python shows them."""
    places: list[SampledPlace] = []
    while frame is not None and len(places) < _DEEPEST:
        places.append(place_of(frame))
        frame = frame.f_back
    return places


def place_of(frame: FrameType) -> SampledPlace:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    return SampledPlace(_readable(name), _readable(code.co_filename), frame.f_lineno or 0)


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _thread_state() -> Any:
    """The address of this thread's state; not `ctypes.pythonapi`, which others share."""
    import ctypes

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
    import ctypes
    from ctypes import c_char_p, c_int, c_int64, c_uint32, c_void_p

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
        ("samples", c_int64, [c_void_p, c_char_p, c_int64]),
        ("free_sampler", None, [c_void_p]),
    ):
        function = getattr(library, f"stepscope_{name}")
        function.restype, function.argtypes = result, arguments
    return library
