"""Where in the user's code a module is called, and what the user calls it there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_INTERNAL = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame, from `frame` outwards, that is neither torch's nor ours."""
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_internal(file: str) -> bool:
    """Whether code is torch's or ours."""
    return file.startswith(_INTERNAL)


def calling_frame() -> FrameType | None:
    """The user's frame that led to the function that asks."""
    return user_frame(sys._getframe(1))


def call_site(frame: FrameType | None) -> tuple[str, int] | None:
    """File and line where `frame` stands."""
    if frame is None:
        return None
    return frame.f_code.co_filename, frame.f_lineno


def name_in(frame: FrameType | None, module: Any) -> str | None:
    """The variable of `frame`, or the attribute of its `self`, that holds `module`."""
    if frame is None:
        return None
    scopes = [frame.f_locals, _attributes(frame.f_locals.get("self")), frame.f_globals]
    names = (name for scope in scopes for name, held in scope.items() if held is module)
    return next((name for name in names if name.strip("_") and name != "self"), None)


def _attributes(holder: Any) -> dict[str, Any]:
    attributes = getattr(holder, "__dict__", {})
    return {**attributes, **attributes.get("_modules", {})}
