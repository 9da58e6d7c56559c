"""The ranks of a file into which somebody merged the traces of several.

Such files are made for a viewer. What tells the ranks apart is the id of the process: with a label
(`[TP01] 4021`, `rank1_4021`), or with a number of its own for each rank, devices included.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import is_step
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

Ids = NDArray[np.integer]
_LABEL = re.compile(r"\[([^\]]+)\]|(rank[-_ ]?\d+)", re.IGNORECASE)
_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_TWO = 2


class Merged(NamedTuple):
    """Which rank each track is of: its place in the list of ranks, shape (tracks,)."""

    part: Ids
    ranks: list[int]


def merged_ranks(trace: Trace) -> Merged | None:
    """The ranks in a trace as a reader made it; None where it is of one, or they cannot be told.

    It is of several where several processes call the device's runtime, and mark steps if any does.
    """
    process = trace["tracks"].text("process")
    callers = _callers(trace)
    if len(callers) < _TWO:
        return None
    return _by_label(list(process)) or _by_launches(trace, callers)


def looks_merged(trace: Trace) -> bool:
    """Whether several processes of one trace call with the same correlation ids.

    Within a process they count up; what launched what cannot be told.
    """
    return len(_callers(trace)) >= _TWO and not _is_unique(trace)


def _callers(trace: Trace) -> Ids:
    """Codes of the processes that call the device's runtime and mark steps of their own."""
    events, process = trace.events, trace["tracks"].text("process").codes
    calls = events.text("category").mask("runtime")
    marks = events.text("category").mask("annotation") & events.text("name").where(is_step)
    callers, marking = (distinct(process[events["track"][rows]]) for rows in (calls, marks))
    return callers[np.isin(callers, marking)] if len(marking) else callers


def _by_label(processes: list[str | None]) -> Merged | None:
    """By what stands in front of each process's id; those without are the first rank's."""
    matches = [_LABEL.match(process or "") for process in processes]
    labels = sorted({match[0].lower() for match in matches if match}, key=_natural)
    if len(labels) < _TWO:
        return None
    part = [labels.index(match[0].lower()) if match else 0 for match in matches]
    told = [_RANK.search(label) for label in labels]
    ranks = [int(match[1]) for match in told if match]
    whole = len(set(ranks)) == len(labels)
    return Merged(np.array(part), ranks if whole else list(range(len(labels))))


def _by_launches(trace: Trace, callers: Ids) -> Merged | None:
    """By which process launches what: each device's process then has the one that calls it."""
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
            return None  # several ranks' work on one device cannot be told apart
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
