"""The cause of each device operation's delay: its launch, its stream, or another stream.

The measured delay is kept on that one dependency, so that the replay is exact; the others get
typical delays. A change that shortens the cause then moves the work until the next dependency
limits it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids, Times
from stepscope.graph.cpu_side import CpuSide
from stepscope.graph.device_tasks import UNKNOWN, WindowWork, launch_latency, previous_ends
from stepscope.graph.stream_waits import find_stream_waits
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class Delays:
    """Delays of each row of `Work`, and of each pair of rows where one waits for the other.

    Attributes:
        call: the CPU task that launched it, or -1.
        launch_lag_ns: minimum time from the start of that task to the start of the work.
        gap_ns: minimum time from its end to the start of the next work on its stream.
        earliest_ns: the start of work with an unknown cause.
        source, target: pairs of rows on two streams.
        wait_lag_ns: for each pair, the minimum time from the source's end to the target's start.
    """

    call: Ids
    launch_lag_ns: Times
    gap_ns: Times
    earliest_ns: Times
    source: Ids
    target: Ids
    wait_lag_ns: Times


def find_delays(trace: Trace, cpu: CpuSide, work: WindowWork, begins_ns: int) -> Delays:
    """The delays of the work of a window that begins at `begins_ns`."""
    source, target = find_stream_waits(trace, cpu.rows, work)
    latency, previous = launch_latency(work, source, target), previous_ends(work)
    call, called = _calls(cpu, work, latency)
    known = call >= 0
    delay = np.where(known, np.maximum(work.start_ns - called, 0), 0)
    launched = np.where(known, called + np.minimum(latency, delay), -1)
    awaited = np.full(len(work.event), -1, np.int64)
    np.maximum.at(awaited, target, work.end_ns[source])
    by_launch = (launched > previous) & (launched > awaited)
    by_stream = (previous >= launched) & (previous >= awaited) & (previous >= 0)
    gap = np.where(by_stream, work.start_ns - previous, 0)
    by_wait = (work.end_ns[source] == awaited[target]) & ~(by_launch | by_stream)[target]
    wait_lag = work.start_ns[target] - work.end_ns[source]
    alone = ~known & work.first & (awaited < 0)
    found = Delays(
        call=call,
        launch_lag_ns=np.where(by_launch, delay, np.minimum(latency, delay)),
        gap_ns=np.append(gap[1:], 0)[: len(gap)],
        earliest_ns=np.where(alone, work.start_ns - begins_ns, 0),
        source=source,
        target=target,
        wait_lag_ns=np.where(by_wait, wait_lag, np.minimum(wait_lag, 0)),
    )
    return _paced_by_stream(work, found, cpu.main) if cpu.is_missing else found


def _paced_by_stream(work: WindowWork, delays: Delays, main: int) -> Delays:
    """Delays where the file has no CPU events: each stream follows the work of the main one.

    What the CPU did is unknown, and on the main stream its delays stay. Other work starts as long
    after the latest work there that began before it, as it was measured to.
    """
    of_main, others = np.flatnonzero(work.track == main), np.flatnonzero(work.track != main)
    at = np.searchsorted(work.start_ns[of_main], work.start_ns[others], side="right") - 1
    target, source = others[at >= 0], of_main[at[at >= 0]]
    gap = delays.gap_ns.copy()
    gap[target[~work.first[target]] - 1] = 0
    return Delays(
        call=np.full(len(work.event), -1, np.int64),
        launch_lag_ns=np.zeros(len(work.event), np.int64),
        gap_ns=gap,
        earliest_ns=delays.earliest_ns,
        source=source,
        target=target,
        wait_lag_ns=work.start_ns[target] - work.end_ns[source],
    )


def _calls(cpu: CpuSide, work: WindowWork, latency: int) -> tuple[Ids, Times]:
    """The CPU task that launched each device operation, or -1, and when that task began.

    Recorders lose launches. If work without a known launch starts on an idle stream, its launch is
    taken to be the task of the loop's or autograd's thread just before it.
    """
    pieces = cpu.pieces
    task = np.where(work.call >= 0, pieces.of_event[work.call], -1)
    assumed_ns = work.start_ns - latency
    callers = np.flatnonzero(np.isin(pieces.track, [cpu.main, *cpu.bursts.track]))
    callers = callers[np.argsort(pieces.start_ns[callers], kind="stable")]
    index = np.searchsorted(pieces.start_ns[callers], assumed_ns, side="right") - 1
    lost = (work.called_ns == UNKNOWN) & (previous_ends(work) < assumed_ns) & (index >= 0)
    task[lost] = callers[index[lost]]
    return task, np.where(task >= 0, pieces.start_ns[task], work.called_ns)
