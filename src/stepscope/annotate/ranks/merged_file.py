"""Ranks in a file that merges the traces of several ranks.

Such files are made for viewers. Process ids distinguish the ranks: by a label (`[TP01] 4021`,
`rank1_4021`), or by a number per rank, devices included.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from stepscope.annotate.names.range_names import is_step
from stepscope.arrays import IntArray
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

_LABEL = re.compile(r"\[([^\]]+)\]|(rank[-_ ]?\d+)", re.IGNORECASE)
_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_TWO = 2


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
    if len(callers) < _TWO:
        return None
    return _by_label(list(process)) or _by_launches(trace, callers)


def looks_merged(trace: Trace) -> bool:
    """Whether several processes of one trace use the same correlation ids.

    Correlation ids are unique per process only, so launches cannot be resolved in such a trace.
    """
    return len(_callers(trace)) >= _TWO and not _is_unique(trace)


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
    labels = sorted({match[0].lower() for match in matches if match}, key=_natural)
    if len(labels) < _TWO:
        return None
    part = [labels.index(match[0].lower()) if match else 0 for match in matches]
    found = [_RANK.search(label) for label in labels]
    ranks = [int(match[1]) for match in found if match]
    whole = len(set(ranks)) == len(labels)
    return Merged(np.array(part), ranks if whole else list(range(len(labels))))


def _by_launches(trace: Trace, callers: IntArray) -> Merged | None:
    """By launches: each device process belongs to the process that launches its work."""
    events, process = trace.events, trace["tracks"].text("process").codes
    if not _is_unique(trace):
        return None
    category, track = events.text("category"), process[events["track"]]
    calls = np.flatnonzero(category.mask("runtime") & (events["correlation"] >= 0))
    calls = calls[np.argsort(events["correlation"][calls], kind="stable")]
    work = np.flatnonzero(category.mask(*DEVICE_WORK) & (events["correlation"] >= 0))
    place = np.searchsorted(events["correlation"][calls], events["correlation"][work])
    caller = track[calls][np.minimum(place, len(calls) - 1)]
    rank = {code: number for number, code in enumerate(callers.tolist())}
    for device in distinct(track[work]).tolist():
        found = distinct(caller[track[work] == device])
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


def _natural(label: str) -> list[tuple[bool, int, str]]:
    """A key that puts rank10 after rank9."""
    parts = re.split(r"(\d+)", label)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
