"""Recordings of one process, one after the other: the cycles of a profiler's schedule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stepscope.annotate.steps.steps import main_track
from stepscope.trace.trace import Trace, clock_of


class Recording(NamedTuple):
    """When a process was recorded.

    Attributes:
        machine: name of its machine, empty if unknown.
        process: its number there, empty if unknown.
        begin_ns, end_ns: of its first and last event, on the common clock of the recordings.
    """

    machine: str = ""
    process: str = ""
    begin_ns: int = 0
    end_ns: int = 0


def recording_of(trace: Trace) -> Recording:
    """When the process of the training loop was recorded."""
    events, tracks = trace.events, trace["tracks"]
    if not len(events):
        return Recording()
    zero = clock_of(trace.metadata)
    begin, end = events["start_ns"].min(), (events["start_ns"] + events["duration_ns"]).max()
    process = str(tracks.text("process")[main_track(trace)])
    number = process if process.isdecimal() else ""
    return Recording(machine_of(trace), number, zero + int(begin), zero + int(end))


def machine_of(trace: Trace) -> str:
    """The machine's name as the capture or the trace says it; empty if neither does."""
    capture, properties = trace.metadata.capture, trace.metadata.properties
    for source, key in ((capture, "host"), (properties, "hostname"), (properties, "host_name")):
        if isinstance(source.get(key), str):
            return str(source[key])
    return ""


def last_cycles(files: Sequence[Hashable], recordings: Sequence[Recording]) -> list[int]:
    """For each recording, the last one of the same process; itself if there is none.

    A process is not recorded twice at a time: recordings that overlap are of several processes,
    such as those of containers, which all have the same number.

    Args:
        files: of each recording, the rank and the folder of its file, as far as they are known.
        recordings: of the files of one job.

    Example:
        >>> first, second = Recording("node", "7", 0, 5), Recording("node", "7", 9, 14)
        >>> last_cycles([None, None], [first, second])
        [1, 1]
    """
    last = list(range(len(recordings)))
    of_process: dict[Hashable, list[int]] = {}
    for row, (file, one) in enumerate(zip(files, recordings, strict=True)):
        if one.process:
            of_process.setdefault((file, one.machine, one.process), []).append(row)
    for rows in of_process.values():
        rows.sort(key=lambda row: recordings[row].begin_ns)
        if all(recordings[a].end_ns <= recordings[b].begin_ns for a, b in pairwise(rows)):
            for row in rows:
                last[row] = rows[-1]
    return last
