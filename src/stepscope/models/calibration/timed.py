"""Times of calls with the share of a core that they got: what other processes took is known.

Runs in the measuring process.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_LEAST_S, _LEAST_CALLS, _MOST_CALLS = 0.03, 3, 50
_SLICE_NS = 1_000_000  # a shorter call runs within a time slice, so its least time is undisturbed
_WAKING_NS = 50_000  # a thread that wakes up waits so long on a quiet machine too, at most
_TASKS = Path("/proc/self/task")

Queued = dict[int, int]


class Timed(NamedTuple):
    """A time, ns, and the share of a core that its calls got while they could run, 0 to 1."""

    ns: float
    share: float = 1.0


def least(calls: Sequence[Callable[[], object]], before: Callable[[], object] = int) -> list[Timed]:
    """The shortest time of each call; interference only makes calls longer.

    The calls alternate, so that load on the machine affects all of them equally. Time in which the
    calling thread waits for a core does not count, nor what happens `before` each call.
    """
    found: list[list[Timed]] = [[] for _ in calls]
    is_long = [_once(call) >= _SLICE_NS for call in calls]
    begin = time.perf_counter()
    while len(found[0]) < _LEAST_CALLS or (
        time.perf_counter() - begin < _LEAST_S * len(calls) and len(found[0]) < _MOST_CALLS
    ):
        for call, long, times in zip(calls, is_long, found, strict=True):
            before()
            times.append(_with_share(call) if long else Timed(_once(call)))
    return [min(times) for times in found]


def queued_ns() -> Queued:
    """How long each thread of this process could run but got no core so far.

    Empty if the system does not say. Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    found = {}
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, ValueError, IndexError):  # the thread may end meanwhile
                found[int(task.name)] = int((task / "schedstat").read_bytes().split()[1])
    return found


def share_since(before: Queued, now: Queued, wall_ns: float) -> float:
    """The share of a core that the thread got which waited longest for one."""
    waited = max((ns - before.get(thread, 0) for thread, ns in now.items()), default=0)
    return _share(waited, wall_ns)


def _share(waited_ns: float, wall_ns: float) -> float:
    return max(1 - max(waited_ns - _WAKING_NS, 0) / max(wall_ns, 1), 0.0)


def _with_share(call: Callable[[], object]) -> Timed:
    begin = time.perf_counter_ns()
    before = queued_ns()
    wall = _once(call)
    now, thread = queued_ns(), threading.get_native_id()
    # A wait while the system is asked may be no wait of the call.
    around = time.perf_counter_ns() - begin - wall
    waits = {number: max(ns - before.get(number, 0) - around, 0) for number, ns in now.items()}
    share = _share(max(waits.values(), default=0), wall)
    return Timed(float(max(wall - waits.get(thread, 0), 1)), share)


def _once(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    result = call()
    wall = time.perf_counter_ns() - start
    del result
    return wall


def each_time(function: Callable[..., Any], *measured: Any) -> Any:
    """What a function makes of the times in equal measurements; whatever else they hold stays."""
    first = measured[0]
    if isinstance(first, dict):
        return {key: each_time(function, *(values[key] for values in measured)) for key in first}
    if isinstance(first, list):
        return [each_time(function, *values) for values in zip(*measured, strict=True)]
    return function(*measured) if all(isinstance(value, Timed) for value in measured) else first


def plain(measured: Any) -> Any:
    """The same with times as numbers, ns."""
    return each_time(lambda time: time.ns, measured)


def least_share(measured: Any) -> float:
    """The smallest share of a core that any of the times got."""
    shares = [1.0]
    each_time(lambda time: shares.append(time.share), measured)
    return min(shares)
