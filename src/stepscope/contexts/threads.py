"""Names for threads that stay the same from run to run, unlike their numbers."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.steps import main_track
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]
_IN_BRACKETS = re.compile(r"\(([^()]+)\)")
_NUMBER = re.compile(r"^thread\b|-?\b\d+\b")


def thread_names(trace: Trace, host: Mask) -> list[str]:
    """A name for each track: the training loop's thread, autograd's, or what it was called.

    Args:
        trace: annotated; of one rank or of several.
        host: events that are calls on threads, bool, shape (events,).

    Returns:
        One name a track; threads with one part to play share one.
    """
    names = [_plain(name or "") for name in trace["tracks"].text("name")]
    for track in np.flatnonzero(_runs_backward(trace, host)).tolist():
        names[track] = "backward"
    for rank in trace.metadata.ranks:
        if (track := _main_of(trace, host, rank)) >= 0:
            names[track] = "main"
    return names


def _plain(name: str) -> str:
    """A thread's name without its number."""
    found = _IN_BRACKETS.search(name)
    plain = found[1] if found else " ".join(_NUMBER.sub(" ", name).split())
    return plain or "thread"


def _runs_backward(trace: Trace, host: Mask) -> Mask:
    """Tracks most of whose calls are of the stage backward."""
    track, tracks = trace.events["track"], len(trace["tracks"])
    backward = host & trace.events.text("stage").mask("backward")
    count = np.bincount(track[backward], minlength=tracks)
    result: Mask = (count > 0) & (2 * count >= np.bincount(track[host], minlength=tracks))
    return result


def _main_of(trace: Trace, host: Mask, rank: int) -> int:
    """The training loop's track of one rank, -1 where it has no calls."""
    mine = host & (trace["tracks"]["rank"] == rank)[trace.events["track"]]
    return main_track(trace.with_table(trace.events.take(mine))) if mine.any() else -1
