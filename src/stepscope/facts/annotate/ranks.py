"""Several ranks: offsets of their clocks, repeated recordings, files that hold several ranks."""

import re
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, IntArray, Times
from stepscope.facts.annotate.device.collectives import collective_key
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.range_names import is_step
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.read.rank_folder import natural, shown
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace, clock_of

Ends = dict[tuple[str, ...], Times]
# No rank gets the result of one of these before all ranks have contributed.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
# When the clocks of two ranks differ: by at least so much, and so many times their spread.
_NOTABLE_NS, _TIMES_SPREAD = 50_000, 5
_LEAST = 3  # collectives in common: a median of fewer is not robust


class RankClocks(NamedTuple):
    """Offset of each rank's clock to that of the first, ns, and the number of collectives used."""

    ahead_ns: list[int]
    collectives: int

    def warnings(self, ranks: Sequence[int]) -> list[tuple[str, str, int]]:
        """Warn about corrected clocks."""
        wrong = [rank for rank, error in zip(ranks, self.ahead_ns, strict=True) if error]
        if not wrong:
            return []
        most = milliseconds(max(map(abs, self.ahead_ns)))
        whose = f"the clock of rank {shown(wrong)} differs"
        if len(wrong) > 1:
            whose, most = f"the clocks of ranks {shown(wrong)} differ", f"up to {most}"
        message = (
            f"{whose} from the clock of rank {ranks[0]} by {most}; "
            f"corrected with {self.collectives} collectives, which end on all ranks at once"
        )
        return [("clocks_set", message, len(wrong))]


def compare_clocks(traces: Sequence[Trace]) -> RankClocks:
    """The clocks of the ranks of one job, from one annotated trace each.

    The n-th collective of a kind on a process group is the same on every rank, and ends on all
    ranks at about the same time. Ranks that share no group with the first are compared through
    other ranks. An offset counts if it is at least 50 us and five times its spread; a rank without
    shared collectives, or with other steps, has none.
    """
    ends = [_ends(trace) for trace in traces]
    same = [np.array_equal(trace["steps"]["step"], traces[0]["steps"]["step"]) for trace in traces]
    ahead, most = {0: 0}, 0
    waiting = [rank for rank in range(1, len(traces)) if same[rank]]
    while waiting:
        offsets = {
            rank: (ahead[other] + difference[0], difference[1])
            for rank in waiting
            for other in sorted(ahead, reverse=True)
            if (difference := _difference(ends[other], ends[rank]))
        }
        if not offsets:
            break
        ahead |= {rank: error for rank, (error, _) in offsets.items()}
        most = max([most, *(count for _, count in offsets.values())])
        waiting = [rank for rank in waiting if rank not in offsets]
    return RankClocks([ahead.get(rank, 0) for rank in range(len(traces))], most)


def _ends(trace: Trace) -> Ends:
    """End times of the collectives of each kind and group, on the clock of the rank."""
    events = trace.events
    communicates = events.text("category").mask("communication")
    rows = np.flatnonzero(communicates & events.text("name").where(lambda n: bool(_TOGETHER.search(n))))
    found: dict[tuple[str, ...], list[int]] = {}
    end = clock_of(trace.metadata) + events["start_ns"] + events["duration_ns"]
    names = events.text("name")
    for row in rows[np.argsort(end[rows], kind="stable")].tolist():
        key = collective_key(str(names[row]), trace.event_arguments(row))
        found.setdefault(key, []).append(int(end[row]))
    return {key: np.array(times, np.int64) for key, times in found.items()}


def _difference(first: Ends, second: Ends) -> tuple[int, int] | None:
    """Offset of the second clock, ns, and the number of collectives used; None if unknown.

    Only kinds with the same number of collectives on both ranks count.
    """
    shared = [key for key in first if key in second and len(first[key]) == len(second[key])]
    apart = np.concatenate([second[key] - first[key] for key in shared] or [np.empty(0, np.int64)])
    if len(apart) < _LEAST:
        return None
    middle = int(np.median(apart))
    spread = float(np.quantile(np.abs(apart - middle), 0.9))
    notable = abs(middle) >= max(_NOTABLE_NS, _TIMES_SPREAD * spread)
    return middle if notable else 0, len(apart)


# -- recordings of one process, one after the other


class ProcessRecording(NamedTuple):
    """When a process was recorded."""

    machine: str = ""  # name of its machine, empty if unknown
    process: str = ""  # its number there, empty if unknown
    begin_ns: int = 0  # of its first event, on the common clock of the recordings
    end_ns: int = 0  # of its last event


def recording_of(trace: Trace) -> ProcessRecording:
    """When the process of the training loop was recorded."""
    events, tracks = trace.events, trace["tracks"]
    if not len(events):
        return ProcessRecording()
    zero = clock_of(trace.metadata)
    begin, end = events["start_ns"].min(), events.spans()[1].max()
    process = str(tracks.text("process")[main_track(trace)])
    number = process if process.isdecimal() else ""
    return ProcessRecording(machine_of(trace), number, zero + int(begin), zero + int(end))


def machine_of(trace: Trace) -> str:
    """The machine's name as the capture or the trace says it; empty if neither does."""
    capture, properties = trace.metadata.capture, trace.metadata.properties
    for source, key in ((capture, "host"), (properties, "hostname"), (properties, "host_name")):
        if isinstance(source.get(key), str):
            return str(source[key])
    return ""


def last_cycles(files: Sequence[Hashable], recordings: Sequence[ProcessRecording]) -> list[int]:
    """For each recording of a job, the last one of the same process; itself if there is none.

    A process is not recorded twice at a time: recordings that overlap are of several processes,
    such as those of containers, which all have the same number.

    Args:
        files: of each recording, the rank and the folder of its file, as far as they are known.
    """
    last = list(range(len(recordings)))
    of_process: dict[Hashable, list[int]] = {}
    for row, (file, recording) in enumerate(zip(files, recordings, strict=True)):
        if recording.process:
            of_process.setdefault((file, recording.machine, recording.process), []).append(row)
    for rows in of_process.values():
        rows.sort(key=lambda row: recordings[row].begin_ns)
        if all(recordings[a].end_ns <= recordings[b].begin_ns for a, b in pairwise(rows)):
            for row in rows:
                last[row] = rows[-1]
    return last


# -- files of several ranks

_LABEL = re.compile(r"\[([^\]]+)\]|(rank[-_ ]?\d+)", re.IGNORECASE)
_RANK = re.compile(r"rank[-_ ]?(\d{1,9})", re.IGNORECASE)


class Merged(NamedTuple):
    """The rank of each track, as an index into `ranks`, shape (tracks,)."""

    part: IntArray
    ranks: list[int]


def merged_ranks(trace: Trace) -> Merged | None:
    """The ranks in a trace as read from a file; None for a single rank, or if inseparable.

    A trace has several ranks if several processes call the device runtime, and mark steps if any
    process does.
    """
    process = trace["tracks"].text("process")
    callers = _callers(trace)
    if len(callers) < 2:
        return None
    return _by_label(list(process)) or _by_launches(trace, callers)


def looks_merged(trace: Trace) -> bool:
    """Whether several processes of one trace use the same correlation ids.

    Correlation ids are unique per process only, so launches cannot be resolved in such a trace.
    """
    return len(_callers(trace)) >= 2 and not _is_unique(trace)


def _callers(trace: Trace) -> IntArray:
    """Codes of the processes that call the device runtime and mark their own steps."""
    events, process = trace.events, trace["tracks"].text("process").codes
    calls = events.text("category").mask("runtime")
    marks = events.text("category").mask("annotation") & events.text("name").where(is_step)
    callers, marking = (distinct(process[events["track"][rows]]) for rows in (calls, marks))
    return callers[np.isin(callers, marking)] if len(marking) else callers


def _by_label(processes: list[str | None]) -> Merged | None:
    """By the label before each process id; processes without one belong to the first rank."""
    matches = [_LABEL.match(process or "") for process in processes]
    labels = sorted({match[0].lower() for match in matches if match}, key=natural)
    if len(labels) < 2:
        return None
    number = {label: place for place, label in enumerate(labels)}
    part = [number[match[0].lower()] if match else 0 for match in matches]
    found = [_RANK.search(label) for label in labels]
    ranks = [int(match[1]) for match in found if match]
    whole = len(set(ranks)) == len(labels)
    return Merged(np.array(part), ranks if whole else list(range(len(labels))))


def _by_launches(trace: Trace, callers: IntArray) -> Merged | None:
    """By launches: each device process belongs to the process that launches its work."""
    if not _is_unique(trace):
        return None
    process, launches = trace["tracks"].text("process").codes, link_launches(trace)["launches"]
    launches = launches.take(launches.text("evidence").mask("correlation"))  # ids of arrows may be shared
    caller, work = (process[trace.events["track"][launches[row]]] for row in ("cpu_event", "device_event"))
    callers = callers[np.isin(callers, caller)] if len(caller) else callers  # others only ask for devices
    rank = {code: number for number, code in enumerate(callers.tolist())}
    for device, rows in rows_by_key(work).items():
        found = distinct(caller[rows])
        if len(found) != 1 or int(found[0]) not in rank:
            return None  # several ranks share a device: inseparable
        rank.setdefault(device, rank[int(found[0])])
    part = np.array([rank.get(code, 0) for code in process.tolist()])
    return Merged(part, list(range(len(callers))))


def _is_unique(trace: Trace) -> bool:
    """Whether each correlation id is used by one process only."""
    events = trace.events
    calls = events.text("category").mask("runtime") & (events["correlation"] >= 0)
    process = trace["tracks"].text("process").codes[events["track"][calls]]
    pairs = distinct(events["correlation"][calls] * (int(process.max(initial=0)) + 1) + process)
    return len(pairs) == len(distinct(events["correlation"][calls]))


# -- peers


def usual_of_peers(busy: Floats, group: Ids) -> Floats:
    """The median time in each rank's group; of two ranks the shorter.

    `group` has a number for each rank, the same for peers, shape (ranks,).

    Example:
        >>> usual_of_peers(np.array([1.0, 2.0, 9.0, 5.0]), np.array([0, 0, 0, 1])).tolist()
        [2.0, 2.0, 2.0, 5.0]
    """
    result = busy.copy()
    for number in np.unique(group).tolist():
        members = group == number
        result[members] = np.sort(busy[members])[(int(members.sum()) - 1) // 2]
    return result
