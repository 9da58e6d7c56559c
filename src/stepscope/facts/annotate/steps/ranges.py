"""Ranges of the user's that are steps: by the names in use, or by the name that the user gives."""

import re
from functools import lru_cache

import numpy as np

from stepscope.base.arrays import Rows, Times
from stepscope.facts.annotate.links.launches import on_host
from stepscope.trace.nesting import outermost
from stepscope.trace.trace import Trace

CHOSEN = "step_range"  # property of a trace: the name of the ranges that the user calls steps
_NAME = re.compile(
    r"^(?:.*[\]/])?(?:epoch\W{0,3}_?\d+\W{0,3}_?)?"
    r"(?:(?:run|do|train(?:ing|er)?|fit|global|one)[ _./-]*)*"
    r"(?:step|iter(?:ation)?|(?:mini[ _-]?)?batch)"
    r"(?:[ _:#=(\[-]{0,3}(?P<number>\d{1,9}))?[)\]]?(?:\s*(?:/|of)\s*\d+)?$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_FEWEST = 2  # ranges of which a loop consists
_MOST_TIME = 0.5  # between the first and the last: ranges of a part of a step take less
_MOST_NAMED = 6  # in an error
_FEW = 3  # ranges of which none is dropped
_SHORT_PAUSE = 0.1  # of the time from one range to the next
_LONG_PAUSE = 3  # times the usual pause between two steps: the loop did something else


@lru_cache(maxsize=1 << 14)
def _group(name: str) -> str | None:
    """What the ranges of a loop have in common in their names; None for a name of no step."""
    return _NUMBER.sub("", name).lower() if _NAME.match(name) else None


def _chosen_group(chosen: str, name: str) -> str | None:
    """The same for a name that the user chose: all of the name, or the name with a number."""
    rest = name.removeprefix(chosen)
    return chosen if name.startswith(chosen) and not re.search(r"[^\W\d_]", rest) else None


def step_ranges(trace: Trace) -> Rows:
    """The ranges of the loop that takes most of the time of one thread, in order; none if none does."""
    events = trace.events
    chosen = str(trace.metadata.properties.get(CHOSEN, ""))
    annotations = events.text("category").mask("annotation") & on_host(trace)
    names = events.text("name").map(lambda name: _chosen_group(chosen, name) if chosen else _group(name))
    marked = annotations & (names.codes >= 0)
    best, most = np.zeros(0, np.intp), 0
    keys = _keys(events["track"], names.codes)
    for key in np.unique(keys[marked]).tolist():
        rows = np.flatnonzero(outermost(events["parent"], marked & (keys == key)))
        start, end = events.spans(rows)
        spent = int((end - start).sum())
        takes_time = chosen or spent >= _MOST_TIME * (end.max() - start[0])
        if len(rows) >= (1 if chosen else _FEWEST) and takes_time and spent > most:
            best, most = rows, spent
    return best


def longest_ranges(trace: Trace) -> list[str]:
    """Names of the ranges on the CPU that take most time, without their numbers, the longest first."""
    events = trace.events
    rows = np.flatnonzero(events.text("category").mask("annotation") & on_host(trace))
    names = events.text("name").take(rows).map(lambda name: _NUMBER.sub("", name).strip())
    spent = np.bincount(names.codes, events["duration_ns"][rows], len(names.values))
    return [names.values[code] for code in np.argsort(-spent)[:_MOST_NAMED].tolist() if spent[code]]


def _keys(track: Rows, group: Rows) -> Times:
    return track.astype(np.int64) << 32 | (group.astype(np.int64) + 1)


def steps_of_ranges(trace: Trace, rows: Rows) -> tuple[Times, Times, Times]:
    """Number, start and end of the step of each range: it lasts until the next, unless the loop pauses."""
    names = trace.events.text("name")
    found = [_last_number(names[row] or "") for row in rows.tolist()]
    numbers = np.array(found, np.int64)
    if (np.diff(numbers) <= 0).any() or (numbers < 0).any():
        numbers = np.arange(len(rows))
    start, end = trace.events.spans(rows)
    pause = start[1:] - end[:-1]
    usual = _LONG_PAUSE * np.median(pause) if len(pause) else 0
    follows = np.append(pause <= np.maximum(usual, (end - start)[:-1]), False)
    # Where the loop does much between its ranges, nothing shows when the last step ends.
    known = len(rows) < _FEW or np.median(pause) <= _SHORT_PAUSE * np.median(np.diff(start))
    count = len(rows) if known else len(rows) - 1
    return numbers[:count], start[:count], np.where(follows, np.append(start[1:], 0), end)[:count]


def _last_number(name: str) -> int:
    """The number of a step in the name of its range, -1 for none: `epoch 2 step 5 of 90` is step 5."""
    found = _NAME.match(name)
    text = found["number"] if found else next(iter(_NUMBER.findall(name)[::-1]), None)
    return int(text[:18]) if text else -1
