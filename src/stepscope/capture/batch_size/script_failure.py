"""What went wrong in the user's code, with the line to look at."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from stepscope.capture.call_sites import is_internal

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc",
                 "unable to allocate", "CUBLAS_STATUS_ALLOC_FAILED",
                 "RESOURCE_EXHAUSTED")  # fmt: skip


def describe_failure(error: BaseException, entry: str) -> dict[str, Any]:
    """An exception as plain data.

    Args:
        error: what was raised.
        entry: the file that was run; the line reported is the innermost one in its folder or,
            failing that, outside all libraries.

    Returns:
        `{"outcome", "error": {"type", "message", "file", "line", "traceback"}}`.
    """
    file, line = _place(error, str(Path(entry).absolute().parent))
    outcome = "out_of_memory" if is_out_of_memory(error) else "failed"
    return {
        "outcome": outcome,
        "error": {
            "type": type(error).__name__,
            "message": str(error).strip() or type(error).__name__,
            "file": file,
            "line": line,
            "traceback": "".join(traceback.format_exception(error)),
        },
    }


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on whatever device."""
    torch: Any = sys.modules.get("torch")
    if isinstance(error, MemoryError):
        return True
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(w.lower() in words for w in _MEMORY_WORDS)


def _place(error: BaseException, folder: str) -> tuple[str | None, int | None]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_internal(frame.filename) and not frame.filename.startswith("<")
    ]
    own = [one for one in frames if not one[0].startswith(_LIBRARIES)]
    near = [one for one in own if one[0].startswith(folder)]
    found = near or own or frames
    return found[-1] if found else (None, None)
