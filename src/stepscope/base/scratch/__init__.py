"""Running a script without changing the project that it belongs to.

    plan_scratch    what is protected, and how; decided once, before the first run
    Scratch         that plan, as plain data; `enter` applies it in the process that runs the script

Where Linux allows it the process gets an *overlay*: the project's folders look as they are, at the
same paths, and whatever is written or deleted there goes to a temporary folder instead. Elsewhere
the script runs in a temporary *copy* of the project, and the project itself is write-protected.
"""

from stepscope.base.scratch.plan import (
    Scratch,
    enter,
    original_path,
    plan_scratch,
    relocated,
    relocated_word,
    scratch_view,
)
from stepscope.base.scratch.write_protection import WriteWatch, listed_writes

__all__ = [
    "Scratch",
    "WriteWatch",
    "enter",
    "listed_writes",
    "original_path",
    "plan_scratch",
    "relocated",
    "relocated_word",
    "scratch_view",
]
