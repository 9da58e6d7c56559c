"""Which operator needs what another one wrote, by an execution trace of the same run.

Kineto's trace says when each operator ran, the execution trace which memory it read and wrote. Of each
part of memory, the operator that wrote it last before another one read it is what that one needs.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np

from stepscope.base.arrays import Ids, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.links.launches import recorded_ids
from stepscope.read.execution_trace import Call, Part, read_execution_trace
from stepscope.trace.trace import Trace

_PAIRS, _BASIS = "data_dependencies", "data_basis"  # properties of a trace
_CALL_ID = re.compile(rb'"Record function id"\s*:\s*"?(\d{1,19})')
_MOST_UNLIKE = 0.01  # of calls whose names differ; chosen: a run of another script shares few names
_SEVERAL = -2  # streams of one operator


def with_execution_trace(trace: Trace, path: Path) -> Trace:
    """Kineto's annotated trace of one process with the data dependencies between its threads and streams.

    Raises StepscopeError if the execution trace at `path` is none, or is of another run.
    """
    calls = _matched(trace, path, *read_execution_trace(path))
    used = f"data dependencies of {len(calls):,} operators (execution trace {path.name})"
    known = {_PAIRS: [*dict.fromkeys(_needed(trace, calls))], _BASIS: [used]}
    return trace.with_metadata(properties={**trace.metadata.properties, **known})


def data_basis(trace: Trace) -> tuple[str, ...]:
    """The execution trace that predictions also rest on, in words; empty without one."""
    return tuple(trace.metadata.properties.get(_BASIS, ()))


def data_pairs(trace: Trace) -> tuple[Ids, Ids]:
    """Operators that write, and those that need what they wrote; events.id."""
    pairs = np.array(trace.metadata.properties.get(_PAIRS, []), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def last_needs(of: Ids, pairs: tuple[Ids, Ids], start: Times, end: Times) -> tuple[Ids, Ids]:
    """The pairs without those that others and the order within threads, or streams, `of` imply."""
    (source, target), kept, latest = pairs, list[int](), dict[tuple[int, int], int]()
    for row in np.lexsort((-end[source], start[target])).tolist():
        threads = int(of[source[row]]), int(of[target[row]])
        if latest.get(threads, -1) < end[source[row]]:
            latest[threads] = int(end[source[row]])
            kept.append(row)
    return source[kept], target[kept]


def _matched(trace: Trace, path: Path, process: int, calls: dict[int, Call]) -> dict[int, Call]:
    """The calls of the execution trace by the event of the same call."""
    events, source = trace.events, trace.metadata.source
    own = np.flatnonzero(events.text("category").mask("cpu_op", "annotation", "communication"))
    ids = recorded_ids(trace, own, _CALL_ID)
    theirs = sorted({*map(str, trace["tracks"].text("process").take(events["track"][own[ids > 0]]))})
    if not theirs:
        raise TraceError(f"{source} fits no execution trace: its operators have no `Record function id`")
    if theirs != [str(process)]:
        raise TraceError(
            f"{path} is of process {process}, {source} of {' and '.join(theirs)}: give one run's"
        )
    both = [(row, calls[call]) for row, call in zip(own.tolist(), ids.tolist(), strict=True) if call in calls]
    found = {row: call for row, call in both if events.text("name")[row] == call[0]}
    if not found or len(found) < (1 - _MOST_UNLIKE) * len(both):
        few = f"of {len(both):,} operators with the same id, {len(found):,} have the same name"
        raise TraceError(f"{path} and {source} are not of the same run: {few}")
    return found


def _needed(trace: Trace, calls: dict[int, Call]) -> Iterator[tuple[int, int]]:
    """Pairs of a call that writes, and a call on another thread or stream that needs it."""
    # What ends at a time, ends before what begins then.
    sides = zip((True, False), trace.events.spans(np.array([*calls])), strict=True)
    turns = [turn for begins, times in sides for turn in zip(times.tolist(), repeat(begins), calls)]
    track, stream = trace.events["track"].tolist(), _streams(trace)
    written: dict[int, list[tuple[Part, int]]] = defaultdict(list)
    left = 4_000_000 + 50 * len(calls)  # parts to compare; chosen: most operators have one
    for _, begins, row in sorted(turns):
        for part in calls[row][1] if begins else calls[row][2]:
            earlier = written[part[0]]
            if (left := left - len(earlier)) < 0:
                raise TraceError("the execution trace has too many parts in a piece of memory to compare")
            for known, writer in earlier if begins else ():
                elsewhere = track[writer] != track[row] or stream.get(writer) != stream.get(row)
                if elsewhere and known[1] < part[2] and part[1] < known[2]:
                    yield writer, row
            if not begins:
                kept = [(known, by) for known, by in earlier if known[1] < part[1] or part[2] < known[2]]
                written[part[0]] = [*kept, (part, row)]


def _streams(trace: Trace) -> dict[int, int]:
    """The stream that the work of operators runs on, `_SEVERAL` for more than one."""
    parent, track, result = trace.events["parent"], trace.events["track"], dict[int, int]()
    for call, work in zip(*(trace["launches"][name] for name in ("cpu_event", "device_event")), strict=True):
        while call >= 0:
            result[call] = int(track[work]) if result.get(call, track[work]) == track[work] else _SEVERAL
            call = int(parent[call])
    return result
