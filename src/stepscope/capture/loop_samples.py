"""Samples of the line that the training loop's thread executes while steps are recorded.

Profilers see operators; what NumPy and plain Python do between them has no event. A thread of the
recorder looks once a millisecond at the frames of the training thread.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from stepscope.capture.internal_files import is_internal

INTERVAL_S = 0.001
# A thread that holds the GIL, as in NumPy, is asked for it after this time, not the usual 5 ms.
# Else samples would come from where PyTorch releases it.
_SWITCH_S = 0.0001
_MOST = 20_000
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class LoopSamples:
    """Samples the thread that makes it, until stopped."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._native = threading.get_native_id()
        self._times: list[int] = []
        self._at: list[tuple[CodeType, int]] = []
        self._over = threading.Event()
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
        self._ours_s = sys.getswitchinterval()
        self._sampler = threading.Thread(target=self._sample, name="stepscope samples", daemon=True)
        self._sampler.start()

    def stop(self) -> dict[str, Any]:
        """End sampling; what was found, as in samples.json."""
        self._over.set()
        self._sampler.join(timeout=1)
        if sys.getswitchinterval() == self._ours_s:
            sys.setswitchinterval(self._switch_s)
        places: dict[tuple[str, str, int], int] = {}
        numbers = [
            places.setdefault((code.co_name, code.co_filename, line), len(places))
            for code, line in self._at
        ]
        first = self._times[0] if self._times else 0
        return {
            "version": 1,
            "thread": self._native,
            "since_unix_ns": first,
            "after_ns": [time_ns - first for time_ns in self._times[: len(numbers)]],
            "place": numbers,
            "places": [
                {"function": function, "file": str(Path(file).absolute()), "line": line}
                for function, file, line in places
            ],
        }

    def _sample(self) -> None:
        while not self._over.wait(INTERVAL_S) and len(self._at) < _MOST:
            frame = _place(sys._current_frames().get(self._thread))
            if frame is not None:
                self._times.append(time.time_ns())
                self._at.append((frame.f_code, frame.f_lineno))


def _place(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's own code, else the nearest that is neither torch's nor ours.

    None where that thread runs only code of torch or stepscope.
    """
    nearest = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_internal(file) and not file.startswith("<"):
            if not file.startswith(_LIBRARIES):
                return frame
            nearest = nearest or frame
        frame = frame.f_back
    return nearest
