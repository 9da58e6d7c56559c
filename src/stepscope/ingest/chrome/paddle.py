"""Traces of Paddle's profiler: names end with durations, and a thread has two tracks.

Source: paddle/fluid/platform/profiler/chrometracing_logger.cc, which names an event
`matmul dygraph[1.8 ms]`, and writes what Python and C++ record on a thread under the thread ids
`7(Python)` and `7(C++)`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.ingest.chrome.event_columns import EventColumns

STEP = "ProfileStep"  # the category of a step, which no other recorder writes
_DURATION = re.compile(r"\[\d+(\.\d+)? [num]?s\]$")
_OF_CPP, _OF_PYTHON = "(C++)", "(Python)"


def read_as_paddle(recorded: EventColumns) -> None:
    """Take durations from names and join the two tracks of a thread, if Paddle wrote the file."""
    if not is_paddle(recorded):
        return
    recorded.name = recorded.name.map(lambda name: _DURATION.sub("", name))
    tracks = list(recorded.columns.tracks)
    number = {track: code for code, track in enumerate(tracks)}
    joined = [number.get(_python_side(track), code) for code, track in enumerate(tracks)]
    recorded.track = np.array(joined, recorded.track.dtype)[recorded.track]


def is_paddle(recorded: EventColumns) -> bool:
    """Whether Paddle's profiler wrote the events."""
    return any(category == STEP for _, category in recorded.phases)


def _python_side(track: tuple[Any, Any]) -> tuple[Any, Any]:
    process, thread = track
    if isinstance(thread, str) and thread.endswith(_OF_CPP):
        return process, thread.removesuffix(_OF_CPP) + _OF_PYTHON
    return track
