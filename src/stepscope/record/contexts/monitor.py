"""The shim: reports what a framework does to any tool (DEEPCONTEXT section 4.1, DLMONITOR).

A tool watches a domain (operators, compilations, memory, the device) and may ask, in its callback
or anywhere else, for the call path of its thread: Python, modules, operators, C++ and kernels in
one. monitor.h is the same for tools in C++.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.errors import CaptureError
from stepscope.record.contexts import native_build as build
from stepscope.record.contexts.context_options import KINDS, SOURCES, ContextOptions
from stepscope.record.contexts.native_collector import NativeCollector


class Domain(Enum):
    """A kind of event to watch."""

    OPERATOR = 0
    COMPILATION = 1
    MEMORY = 2
    DEVICE = 3
    TENSORS = 4  # operators with their inputs and outputs; operators are slower while this is watched


class Phase(Enum):
    """What happened."""

    BEGIN = 0
    END = 1
    ALLOCATE = 2
    RELEASE = 3
    ACTIVITY = 4


class TensorFacts(NamedTuple):
    """A tensor that an operator gets or returns, without its values."""

    dtype: str  # as PyTorch's C++ names it: Float, BFloat16, Long
    shape: tuple[int, ...]
    device: str
    bytes: int


@dataclass(frozen=True)
class MonitorEvent:
    """An event that a callback receives."""

    domain: Domain
    phase: Phase
    name: str  # of the operator, the compilation, the memory's device, the driver's call or the kernel
    address: int  # of memory
    bytes: int  # of memory
    nanoseconds: int  # duration of a device activity
    context: int  # that launched a device activity, for `call_path`; else the operator's
    details: str = ""  # JSON of `tensors` and `arguments`

    @property
    def tensors(self) -> tuple[TensorFacts | None, ...]:
        """Inputs at BEGIN and outputs at END of an operator in TENSORS; None for what is no tensor."""
        values = json.loads(self.details) if self.domain is Domain.TENSORS else []
        return tuple(value and TensorFacts(value[0], tuple(value[1]), *value[2:]) for value in values)

    @property
    def arguments(self) -> dict[str, Any]:
        """Known arguments of a call of the driver at BEGIN in DEVICE: of launches and copies."""
        return dict(json.loads(self.details)) if self.domain is Domain.DEVICE and self.details else {}


@dataclass(frozen=True)
class PathFrame:
    """A frame of a call path."""

    kind: str  # python, module, operator, annotation, runtime, native, kernel or instruction
    is_backward: bool  # whether it is the backward of the frame before it
    name: str
    file: str
    line: int


class Monitor:
    """The shim at work; `monitoring` makes one."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._watches: list[int] = []

    def watch(self, domain: Domain, callback: Callable[[MonitorEvent], object]) -> Callable[[], None]:
        """Call `callback` for each event of `domain`, in the event's thread; returns what ends that.

        The callback's own operators are neither reported nor counted. Its exceptions go to stderr.
        """

        def call(domain: int, phase: int, *rest: Any) -> None:
            callback(MonitorEvent(Domain(domain), Phase(phase), *rest))

        number = self._extension.watch(domain.value, call)
        self._watches.append(number)
        return lambda: self._extension.unwatch(number)

    @property
    def library(self) -> Path:
        """What a tool in C++ links with; `headers` has its `monitor.h`. Loaded already."""
        return Path(self._extension.__file__)

    @property
    def headers(self) -> Path:
        return build.SOURCES

    def close(self) -> None:
        while self._watches:
            self._extension.unwatch(self._watches.pop())

    def call_path(
        self, sources: Iterable[str] = ("python", "module", "operator"), context: int = 0
    ) -> list[PathFrame]:
        """The frames of this thread's innermost context, outermost first; or those of another context.

        Raises CaptureError if `sources` has another kind than python, module, operator, native, kernel.
        """
        wanted = set(sources)
        if unknown := wanted - set(SOURCES):
            raise CaptureError(f"expected sources of {list(SOURCES)}, found {sorted(unknown)}")
        frames = self._extension.call_path(sum(SOURCES[source] for source in wanted), context)
        return [PathFrame(KINDS[kind], *rest) for kind, *rest in frames]

    @contextmanager
    def operator(self, name: str) -> Iterator[None]:
        """An operator of a framework without hooks; for adapters in Python."""
        token = self._extension.begin(name)
        try:
            yield
        finally:
            self._extension.end(token)

    def emit(self, domain: Domain, phase: Phase, name: str, address: int = 0, size: int = 0) -> None:
        """Report another event; for adapters."""
        self._extension.emit(domain.value, phase.value, name, address, size)


@contextmanager
def monitoring(options: ContextOptions | None = None) -> Iterator[Monitor]:
    """The shim for the length of a block, with or without a collection of contexts.

    Where none runs, `options` says which frames call paths are to have. Raises CaptureError if the
    native collector cannot be built here.
    Example:
        with monitoring() as monitor:
            monitor.watch(Domain.OPERATOR, lambda what: print(what.name, monitor.call_path()))
            train()
    """
    from stepscope.record.contexts.sessions import Collection

    torch = sys.modules.get("torch")
    try:
        extension = build.load(torch)
    except build.BuildError as error:
        raise CaptureError(f"the native collector cannot be built: {error}") from error
    monitor = Monitor(extension)
    own = NativeCollector(extension, options or ContextOptions(), torch)
    is_own = Collection.running is None
    if is_own:
        own.start()
    try:
        yield monitor
    finally:
        own.fetch_device_work()  # while somebody still watches
        monitor.close()
        if is_own:
            own.stop()
            own.release()
