"""What held each piece of device work back: its launch, its stream, or another stream.

The time from there to its start is kept on that one dependency, so that the replay is exact; the
others get what is typical. A change that shortens what held work back then moves it until the next
dependency holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.cpu import CpuSide
from stepscope.graph.device import UNKNOWN, Work, launch_latency, previous_ends
from stepscope.graph.stream_waits import find_stream_waits
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Delays:
    """For each row of `Work`, and for each pair of rows of which one waits for the other.

    Attributes:
        call: the CPU task that launched it, or -1.
        launch_lag_ns: from the start of that task to its own, at least.
        gap_ns: from its end to the start of the next on its stream, at least.
        earliest_ns: when work of an unknown cause started.
        source, target: pairs on two streams.
        wait_lag_ns: for each pair, from the one's end to the other's start, at least.
    """

    call: Ids
    launch_lag_ns: Times
    gap_ns: Times
    earliest_ns: Times
    source: Ids
    target: Ids
    wait_lag_ns: Times


def find_delays(trace: Trace, cpu: CpuSide, work: Work, begins_ns: int) -> Delays:
    """The delays of the work of a window that begins at `begins_ns`."""
    latency, previous = launch_latency(work), previous_ends(work)
    call, called = _calls(cpu, work, latency)
    source, target = find_stream_waits(trace, cpu.rows, work)
    known, lost = call >= 0, work.called_ns == UNKNOWN
    delay = np.where(known, np.maximum(work.start_ns - called, 0), 0)
    launched = np.where(known, called + np.minimum(latency, delay), -1)
    awaited = np.full(len(work.event), -1, np.int64)
    np.maximum.at(awaited, target, work.end_ns[source])
    by_launch = (launched > previous) & (launched > awaited)
    by_stream = (previous >= launched) & (previous >= awaited) & (previous >= 0)
    gap = np.where(by_stream & (known | lost), work.start_ns - previous, 0)
    by_wait = (work.end_ns[source] == awaited[target]) & ~(by_launch | by_stream)[target]
    wait_lag = work.start_ns[target] - work.end_ns[source]
    alone = ~known & (work.first | ~lost)
    return Delays(
        call=call,
        launch_lag_ns=np.where(by_launch, delay, np.minimum(latency, delay)),
        gap_ns=np.append(gap[1:], 0)[: len(gap)],
        earliest_ns=np.where(alone, work.start_ns - begins_ns, 0),
        source=source,
        target=target,
        wait_lag_ns=np.where(by_wait, wait_lag, np.minimum(wait_lag, 0)),
    )


def _calls(cpu: CpuSide, work: Work, latency: int) -> tuple[Ids, Times]:
    """The CPU task that launched each piece of work, or -1, and when that began.

    Recorders lose launches. Work without one that found its stream idle is taken to be launched by
    what the loop's or autograd's thread did just before it.
    """
    pieces = cpu.pieces
    task = np.where(work.call >= 0, pieces.of_event[work.call], -1)
    moment = work.start_ns - latency
    near = np.flatnonzero(np.isin(pieces.track, [cpu.main, *cpu.bursts.track]))
    near = near[np.argsort(pieces.start_ns[near], kind="stable")]
    index = np.searchsorted(pieces.start_ns[near], moment, side="right") - 1
    lost = (work.called_ns == UNKNOWN) & (previous_ends(work) < moment) & (index >= 0)
    task[lost] = near[index[lost]]
    return task, np.where(task >= 0, pieces.start_ns[task], work.called_ns)
