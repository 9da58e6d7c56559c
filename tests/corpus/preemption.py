"""Draw what a busy machine does to a trace: its training loop loses its core for a while."""

from __future__ import annotations

import numpy as np

from stepscope.base.arrays import Times
from stepscope.trace.nesting import self_times
from stepscope.trace.trace import Trace

NS_PER_MS = 1_000_000


def preempted(trace: Trace, seed: int, every_ms: float = 4.0, for_ms: float = 4.0) -> Trace:
    """The trace with the clock stopped at random times.

    Args:
        trace: the steps of one thread.
        seed: of the times.
        every_ms: the mean time between two stops.
        for_ms: the mean length of one.
    """
    random = np.random.default_rng(seed)
    events = trace.events
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    count = int((end.max() - start.min()) / NS_PER_MS / every_ms)
    times = np.sort(random.uniform(start.min(), end.max(), count))
    lost = np.append(0, np.cumsum(random.exponential(for_ms * NS_PER_MS, count)).astype(np.int64))

    def later(time: Times) -> Times:
        return np.asarray(time + lost[np.searchsorted(times, time)], np.int64)

    duration = later(end) - later(start)
    own = self_times(events["parent"], later(start), duration)
    trace = trace.with_events(duration_ns=duration, self_ns=own)
    for table in trace.tables.values():
        clock = [one.name for one in table.schema.columns if one.refers == "clock"]
        moved = {name: later(table[name]) for name in clock}
        trace = trace.with_table(table.with_columns(**moved)) if moved and len(table) else trace
    return trace
