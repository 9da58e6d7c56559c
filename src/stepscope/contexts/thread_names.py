"""Names of threads that are stable from run to run, unlike thread ids."""

from __future__ import annotations

import re

import numpy as np

from stepscope.annotate.range_names import is_step
from stepscope.arrays import Mask
from stepscope.trace.trace import Trace

_IN_BRACKETS = re.compile(r"\(([^()]+)\)")
_NUMBER = re.compile(r"^thread\b|-?\b\d+\b")


def thread_names(trace: Trace, host: Mask) -> list[str]:
    """A name for each track: `main` for the training loop, `backward` for autograd, else its own.

    Args:
        trace: annotated; of one or several ranks.
        host: events that are calls on threads, bool, shape (events,).

    Returns:
        One name per track; threads with the same role share a name.
    """
    names = [_plain(name or "") for name in trace["tracks"].text("name")]
    for track in np.flatnonzero(_runs_backward(trace, host)).tolist():
        names[track] = "backward"
    for track in _main_tracks(trace, host):
        names[track] = "main"
    return names


def _plain(name: str) -> str:
    """A thread's name without its number."""
    found = _IN_BRACKETS.search(name)
    plain = found[1] if found else " ".join(_NUMBER.sub(" ", name).split())
    return plain or "thread"


def _runs_backward(trace: Trace, host: Mask) -> Mask:
    """Tracks on which most calls are in the backward stage."""
    track, tracks = trace.events["track"], len(trace["tracks"])
    backward = host & trace.events.text("stage").mask("backward")
    count = np.bincount(track[backward], minlength=tracks)
    result: Mask = (count > 0) & (2 * count >= np.bincount(track[host], minlength=tracks))
    return result


def _main_tracks(trace: Trace, host: Mask) -> list[int]:
    """The training loop's track of each rank: the one with step marks, else the busiest."""
    events, tracks = trace.events, len(trace["tracks"])
    marks = host & events.text("name").where(is_step)
    calls = host & events.text("category").mask("cpu_op", "python", "runtime")
    found: list[int] = []
    for named in (marks, calls, host):
        weight = np.bincount(events["track"][named], events["self_ns"][named] + 1.0, tracks)
        for rank in trace.metadata.ranks:
            of_rank = np.where(trace["tracks"]["rank"] == rank, weight, 0.0)
            known = {int(trace["tracks"]["rank"][track]) for track in found}
            if tracks and of_rank.max() > 0 and rank not in known:
                found.append(int(of_rank.argmax()))
    return found
