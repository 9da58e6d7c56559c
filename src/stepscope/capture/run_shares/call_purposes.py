"""Where the program begins an activity, and what the names of its functions say about it."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from types import FrameType

from stepscope.capture.call_sites import is_internal
from stepscope.capture.run_shares.activity_log import Activity

_EVALUATION = re.compile(r"(?i)eval|valid|predict|(^|_)(val|test|infer)(_|$)")
_ROLLOUT = re.compile(
    r"(?i)roll_?out|generat|collect|explor|episode|self_?play|(^|_)(play|act|sample|samples)(_|$)|"
    r"(get|select|choose|take|sample)_action"
)
_NEITHER = re.compile(r"(?i)train|(^|_)(fit|learn|update|optimi[sz]e|loss)(_|$)|^main$|^<module>$")
_DEEPEST = 30
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def activity_at(kind: str, frame: FrameType, decorated: str = "") -> Activity:
    """An activity that begins in `frame`.

    Its place is the nearest line outside of libraries; the nearest calling function whose name
    says so gives the purpose.

    Args:
        kind: of the activity.
        frame: the caller.
        decorated: the name of the function that `frame` calls, if known.
    """
    callers = [caller for caller in _callers(frame) if not is_internal(caller.f_code.co_filename)]
    names = [decorated, *(caller.f_code.co_name for caller in callers)]
    place = next((c for c in callers if not c.f_code.co_filename.startswith(_LIBRARIES)), frame)
    purpose, function = _purpose(names)
    return Activity(
        kind,
        function or decorated or place.f_code.co_name,
        place.f_code.co_filename,
        place.f_lineno,
        purpose,
    )


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_DEEPEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _purpose(names: list[str]) -> tuple[str | None, str]:
    """`evaluation` or `rollout`, and the name that says so."""
    for name in names:
        if _EVALUATION.search(name):
            return "evaluation", name
        if _ROLLOUT.search(name):
            return "rollout", name
        if _NEITHER.search(name):
            break
    return None, ""
