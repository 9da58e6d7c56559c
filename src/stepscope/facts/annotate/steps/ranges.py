"""Ranges of the user's that are steps: by the names in use, or by the name that the user gives."""

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from stepscope.base.arrays import Mask, Rows, Times
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.links.launches import launch_of, on_host
from stepscope.facts.annotate.range_names import ends_update, is_layer, is_step, stage_of_range
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import is_inside, outermost
from stepscope.trace.row_order import count_within, rows_by_key, running_span
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace

CHOSEN = "chosen_range"  # property of a trace: the name of the ranges that the user asks for
# Names end in the word of a step; numbers, and the words of `_AROUND`, may follow and precede it.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STEP_WORDS = {"step", "iter", "iteration", "it"}
_BATCH_WORDS = {"batch", "minibatch"}
_AROUND = re.compile(
    "epoch|of|on|rank|train(ing|er)?|run|do|fit|global|one|mini|pl|profiler?|idx|index|num(ber)?|id"
)
# Words for a part of a step, or for steps of something else than training.
_OTHERS = re.compile(
    "eval|evaluat(e|ion)|val|valid|validat(e|ion)|test|opt|optim|optimizer|scheduler|scaler|lr|zero|grad"
    "|load|loader|loading|data|next|get|fetch|prefetch|forward|fwd|backward|bwd|micro|save|checkpoint|sync"
)
_FORWARD, _BACKWARD = re.compile("forward|fwd"), re.compile("backward|bwd")  # both are a step
_AFTER_WORD = re.compile(r"(?i)(?:step|iter(?:ation)?|batch)\W{0,4}_?(\d{1,9})")
_NUMBER = re.compile(r"\d+")
_MOST_KEYS = 100  # ranges of one name and thread that may be the loop, those that take most time
# A metric that a loop prints next to the number of its step: `loss=2.31`, `lr: 3e-04`, `tokens 4096`.
_METRIC = re.compile(
    r"(?i)([A-Za-z]\w{0,64}\W{0,3}[-+]?(\d{0,20}\.\d+(e[-+]?\d+)?|\d+e[-+]?\d+|nan|inf)"
    r"|\b(loss|lr|tokens|samples|bs|seq_?len|acc|ppl)\s?[:= ]\s?\d+)\b"
)
Steps = tuple[Times, Times, Times]
"""Numbers, starts and ends of steps, each of shape (steps,)."""
WITHOUT_GRADIENTS = "evaluation, or other work of the model without gradients,"
WITHOUT_BACKWARD = "an evaluation, or a step that is cut off before its backward pass,"
_NONE: Rows = np.zeros(0, np.intp)
_FEWEST = 2  # ranges of which a loop consists
_MOST_TIME = 0.5  # between the first and the last: ranges of a part of a step take less
_MOST_NAMED = 6  # in an error
_FEW = 3  # ranges of which none is dropped
_SHORT_PAUSE = 0.1  # of the time from one range to the next
_LONG_PAUSE = 3  # times the usual pause between two steps: the loop did something else
_LARGEST = 2**31 - 1  # of the numbers of steps, as tables store them


def _is_step_name(name: str) -> bool:
    """Whether a range of this name is a step of training.

    Example:
        >>> [_is_step_name(name) for name in ("Epoch[1/10] Step[3/100]", "step 3: loss 1.2", "[x]run_batch")]
        [True, True, True]
        >>> [_is_step_name(name) for name in ("eval_step 3", "load batch 3", "step 3 forward", "stepping")]
        [False, False, False, False]
    """
    name = re.sub(r"^(\[\D*?\])+(?=.*[A-Za-z])", "", _METRIC.sub("", name))
    words = [word.lower() for word in _WORD.findall(name)]
    own = [word for word in words if not _AROUND.fullmatch(word)]
    if any(map(_FORWARD.fullmatch, own)) and any(map(_BACKWARD.fullmatch, own)):
        own = [word for word in own if not (_FORWARD.fullmatch(word) or _BACKWARD.fullmatch(word))]
    if own[-1:] and own[-1] in _BATCH_WORDS:
        return len(own) == 1
    return bool(own) and own[-1] in _STEP_WORDS and not any(map(_OTHERS.fullmatch, own))


def is_of_other_loop(name: str) -> bool:
    """Whether a name has a word for a part of a step, or for steps of something else than training.

    Example:
        >>> is_of_other_loop("eval"), is_of_other_loop("train")
        (True, False)
    """
    return any(_OTHERS.fullmatch(word.lower()) for word in _WORD.findall(name))


@lru_cache(maxsize=1 << 14)
def _group(name: str) -> str | None:
    """What the ranges of a loop have in common in their names; None for a name of no step."""
    is_part = stage_of_range(name) is not None
    return _NUMBER.sub("", _METRIC.sub("", name)).lower() if _is_step_name(name) and not is_part else None


def step_ranges(trace: Trace) -> Rows:
    """The ranges with names of steps, of the loop that takes most of one thread's time, in order."""
    return _longest_loop(trace, _group, _FEWEST, _MOST_TIME)


def ranges_of_updates(trace: Trace, updates: Rows) -> Rows:
    """The ranges of a loop that hold one update of the weights each, by any name, in order.

    A few may hold none, as where gradients overflow. None if most do, as with several micro-batches
    for an update. The updates are of one optimizer and one thread, ascending; at least one.
    """
    events = trace.events
    names = events.text("name").map(_words)
    marked = events.text("category").mask("annotation") & (names.codes >= 0)
    begin, row, around = events["start_ns"][updates], updates.astype(np.int64), np.full(len(updates), -1)
    while (row >= 0).any():
        row = np.where(row >= 0, events["parent"][row], -1)
        held = count_within(begin, *events.spans(row))
        around = np.where((row >= 0) & marked[row] & (held == 1), row, around)
    group = names.codes[around]
    if (around < 0).any() or (group != group[0]).any():
        return _NONE
    words = names.values[group[0]]
    rows = _longest_loop(trace, lambda name: words if _words(name) == words else None, _FEWEST, _MOST_TIME)
    here = len(rows) and events["track"][rows[0]] == events["track"][updates[0]]
    return rows if here and 2 * len(updates) > len(rows) else _NONE


def _words(name: str) -> str | None:
    return None if stage_of_range(name) else _NUMBER.sub("", _METRIC.sub("", name))


def chosen_ranges(trace: Trace) -> Rows:
    """The ranges that the user asks for, of the thread on which they last longest; none without a choice.

    They have the name, or else its words with other numbers, or begin with it.
    """
    chosen = str(trace.metadata.properties.get(CHOSEN, ""))
    if not chosen:
        return _NONE
    exact = _longest_loop(trace, lambda name: name if name == chosen else None, 1, 0)
    return exact if len(exact) else _longest_loop(trace, lambda name: _alike(chosen, name), 1, 0)


def _alike(chosen: str, name: str) -> str | None:
    begins = name.startswith(chosen) and not name[len(chosen) :][:1].isalpha()
    return chosen if begins or _NUMBER.sub("", name).strip() == _NUMBER.sub("", chosen).strip() else None


def _longest_loop(trace: Trace, group: Callable[[str], str | None], fewest: int, covers: float) -> Rows:
    events = trace.events
    ranges = np.flatnonzero(events.text("category").mask("annotation") & on_host(trace))
    texts = events.text("name").take(ranges).compact()
    names, aside = texts.map(group), ranges[texts.where(_is_aside)]
    keys = np.full(len(events), -1, np.int64)  # of ranges of no group as well
    keys[ranges] = np.where(names.codes < 0, -1, events["track"][ranges].astype(np.int64) << 32 | names.codes)
    best, most = _NONE, -1
    of_key = [rows for rows in rows_by_key(keys, np.flatnonzero(keys >= 0)).values() if len(rows) >= fewest]
    of_key.sort(key=lambda rows: -int(events["duration_ns"][rows].sum()))
    for rows in of_key[:_MOST_KEYS]:
        rows = np.flatnonzero(outermost(events["parent"], mask_of(rows, len(events))))
        start, end = events.spans(rows)
        others = Intervals(*events.spans(aside[events["track"][aside] == events["track"][rows[0]]]))
        spent, elapsed = int((end - start).sum()), others.gaps(int(start[0]), int(end.max())).total()
        if len(rows) >= fewest and spent >= covers * elapsed and spent > most:
            best, most = rows, spent
    return best


@lru_cache(maxsize=1 << 14)
def _is_aside(name: str) -> bool:
    """Whether a range of this name is no training: an evaluation, a checkpoint, a step of another loop."""
    of_other = is_step(name) and is_of_other_loop(name.partition("#")[0])
    return of_other or stage_of_range(name) in ("evaluation", "checkpointing")


def beside_training(trace: Trace) -> Mask:
    """What runs in ranges of evaluations, of checkpoints and of another loop's steps, (events,)."""
    events = trace.events
    ranges = np.flatnonzero(events.text("category").mask("annotation"))
    marks = ranges[events.text("name").take(ranges).compact().where(_is_aside)]
    inside = is_inside(events["parent"], mask_of(marks, len(events)))
    return inside | np.append(inside, False)[launch_of(trace)]  # the last: without a launch


def until_evaluation(trace: Trace, marks: Rows, starts: Times, ends: Times) -> tuple[Times, str]:
    """The ends of marked steps, or starts without a pass, without layers that only the last call after it.

    And what these are: an evaluation, unless autograd recorded them too, or no layer at all.
    """
    events, names = trace.events, trace.events.text("name")
    begin, passes = events["start_ns"], is_backward(events) | names.where(ends_update)
    calls = names.where(is_layer) & (events["track"] == events["track"][marks[0]])
    done = np.append(-1, np.maximum.accumulate(events.spans(passes)[1]))
    since = np.maximum(done[np.searchsorted(begin[passes], ends)], starts)
    evaluates = count_within(begin[calls], since, ends) > 0
    first = int(np.flatnonzero(~evaluates).max(initial=-1)) + 1  # of the last steps, which all do
    trains = first >= _FEWEST and not evaluates[:first].any() and (since > starts)[:first].all()
    is_aside = trains and not trace.metadata.capture.get("recorded_steps")
    until = np.where(is_aside & (np.arange(len(ends)) >= first), since, ends)
    after = calls & (begin >= until[first:].min(initial=ends[-1]))
    known = events["sequence"] >= 0
    is_evaluation = (calls & known).any() and not (after & known).any()
    return until, WITHOUT_GRADIENTS if is_evaluation else WITHOUT_BACKWARD


def cut_to_ranges(trace: Trace, rows: Rows, numbers: Times, starts: Times, ends: Times) -> Steps:
    """The steps whose middles lie in ranges that contain several, without what is outside of the range."""
    begin, end = trace.events.spans(rows)
    place = running_span(begin, end, (starts + ends) // 2)
    inside = place >= 0
    inside &= np.bincount(place[inside], minlength=len(rows))[place] > 1
    place = place[inside]
    return numbers[inside], np.maximum(starts[inside], begin[place]), np.minimum(ends[inside], end[place])


def longest_ranges(trace: Trace) -> list[str]:
    """Names of the ranges on the CPU that take most time, the longest first; one of those with numbers."""
    events = trace.events
    rows = np.flatnonzero(events.text("category").mask("annotation") & on_host(trace))
    names = events.text("name").take(rows)
    groups = names.map(lambda name: _NUMBER.sub("", name).strip())
    spent = np.bincount(groups.codes, events["duration_ns"][rows], len(groups.values))
    example = dict(zip(groups, names, strict=True))
    longest = (groups.values[code] for code in np.argsort(-spent)[:_MOST_NAMED].tolist() if spent[code])
    return [example[group] or "" for group in longest]


def steps_of_ranges(trace: Trace, rows: Rows, is_part: bool = False) -> Steps:
    """Number, start and end of the step of each range.

    It lasts until the next, unless the loop pauses. Ranges that the user chose may be parts
    (`is_part`) of a loop that does much between them: each then is the step itself.
    """
    names = trace.events.text("name")
    numbers = np.array([_step_number(names[row] or "") for row in rows.tolist()], np.int64)
    if (np.diff(numbers) <= 0).any() or (numbers < 0).any() or (numbers > _LARGEST).any():
        numbers = np.arange(len(rows))
    start, end = trace.events.spans(rows)
    pause = start[1:] - end[:-1]
    usual = np.median(pause) if len(pause) else 0
    is_loop = len(rows) < _FEWEST or usual <= _SHORT_PAUSE * np.median(np.diff(start))
    if is_part and not is_loop:
        return numbers, start, end
    follows = np.append(pause <= np.maximum(_LONG_PAUSE * usual, (end - start)[:-1]), False)
    # Where the loop does much between its ranges, nothing shows when the last step ends.
    count = len(rows) if is_loop or len(rows) < _FEW else len(rows) - 1
    return numbers[:count], start[:count], np.where(follows, np.append(start[1:], 0), end)[:count]


def _step_number(name: str) -> int:
    """The number of a step in the name of its range, -1 for none: `epoch 2 step 5 of 90` is step 5."""
    numbers = _AFTER_WORD.findall(name) or _NUMBER.findall(name)
    return int(numbers[-1][:18]) if numbers else -1
