"""Shows the exception that ended the program as Python does, without the recorder's frames."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType

_OUR_FOLDER = str(Path(__file__).parent)


def show(error: BaseException) -> str | int | None:
    """Report an uncaught exception through the program's own hook.

    Returns:
        The exit code; another than 1 only where the hook ends the program itself.
    """
    with suppress(Exception):
        _hide_our_frames(error)
    _set_last(error)
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        return _display("sys.excepthook is missing\n", error)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int | None) else str(exit.code)
    except BaseException as second:
        _hide_our_frames(second)
        second.__context__ = None if second.__context__ is error else second.__context__
        _display("Error in sys.excepthook:\n", second)
        _display("\nOriginal exception was:\n", error)
    return 1


def _set_last(error: BaseException) -> None:
    """What debuggers and exit functions look at after an uncaught exception."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def _display(heading: str, error: BaseException) -> int:
    with suppress(Exception):
        if sys.stderr is not None:
            sys.stderr.write(heading)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _hide_our_frames(error: BaseException) -> None:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_our_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Iterative: a traceback of a RecursionError is as deep as the stack allows."""
    kept = [entry for entry in _entries(traceback) if not _is_ours(entry)]
    for entry, following in pairwise([*kept, None]):
        if entry is not None and entry.tb_next is not following:
            entry.tb_next = following
    return kept[0] if kept else None


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER)
