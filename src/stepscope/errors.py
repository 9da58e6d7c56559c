"""The errors that stepscope raises on purpose.

    StepscopeError              exit code 2, printed as one line without a traceback
    ├── IngestError             a file cannot be read as a trace
    ├── TraceError              a trace lacks a requested table, column or step
    ├── QueryError              the SQL of `stepscope query` is wrong
    ├── GraphError              a dependency graph, or a change of it, is inconsistent
    ├── ChangeError             a what-if change does not apply, or its syntax is wrong
    │   └── NotMeasured         it needs what `stepscope calibrate` measures
    ├── RuleError               a custom rule cannot be loaded, or fails
    ├── CaptureError            a training script cannot be run or recorded
    ├── ScratchError            a script cannot be run without changing its project
    ├── EngineError             a cluster cannot do the work it is given
    ├── ServeError              the page cannot be served, or a request is invalid
    └── BatchError              a batch size cannot be found, changed or measured
        └── AmbiguousBatchSize  there are several candidates for the batch size

A message says what failed and why, where, and what to do next.
"""

import errno
from collections.abc import Iterable, Sequence
from typing import Any

_NEAR = 0.75  # least likeness, 0 to 1; chosen: `faster` is near `faster_gpu`, `stalls` not `calls`


class StepscopeError(Exception):
    """The base class of all errors about input or usage.

    May quote what a file holds: line ends and control characters are shown as escapes.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__("".join(char if char.isprintable() else ascii(char)[1:-1] for char in message))


class IngestError(StepscopeError):
    """A file cannot be read as a trace."""


class TraceError(StepscopeError):
    """A trace lacks a requested table, column or step."""


class QueryError(StepscopeError):
    """The SQL of `stepscope query` is wrong; lines of the message show where."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


class GraphError(StepscopeError):
    """A dependency graph, or a change of it, is inconsistent."""


class ChangeError(StepscopeError):
    """A what-if change does not apply, or its syntax is wrong."""


class NotMeasured(ChangeError):
    """A what-if change needs what `stepscope calibrate` measures on the machine of the trace."""


class RuleError(StepscopeError):
    """A custom rule cannot be loaded, or fails."""


class CaptureError(StepscopeError):
    """A training script cannot be run or recorded."""


class ScratchError(StepscopeError):
    """A script cannot be run without changing its project."""


class EngineError(StepscopeError):
    """A cluster cannot do the work it is given."""


class BatchError(StepscopeError):
    """A batch size cannot be found, changed or measured.

    Attributes:
        file: the file concerned, if any.
        line: the line in it, from 1.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class AmbiguousBatchSize(BatchError):
    """There are several candidates for the batch size.

    Attributes:
        candidates: the places to choose from.
    """

    def __init__(self, message: str, candidates: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class ServeError(StepscopeError):
    """The page cannot be served, or a request is invalid; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def one_line(error: BaseException) -> str:
    """What an error of another library says, on one line; its class if it says nothing.

    Example:
        >>> one_line(ValueError("two\\nlines")), one_line(KeyError())
        ('two lines', 'KeyError')
    """
    return " ".join(str(error).split()) or type(error).__name__


def name_hint(name: str, known: Iterable[str]) -> str:
    """What to use instead of an unknown name: the nearest one, else any.

    Example:
        >>> name_hint("AMPP", ["amp", "tf32"]), name_hint("x", ["amp", "tf32"])
        ('did you mean amp?', 'choose one of amp, tf32')
    """
    known = list(known)
    return meant(name, known) or f"choose one of {', '.join(known)}"


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the nearest known name was meant; empty where none is near."""
    from difflib import get_close_matches  # not in every process that records

    names = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), names, n=1, cutoff=_NEAR)
    return f"did you mean {names[near[0]]}?" if near else ""


def failure(error: BaseException) -> str:
    """What code of others raised, in one line; raises Ctrl-C and the errors of stepscope again.

    Example:
        >>> failure(SystemExit("no"))
        'SystemExit: no'
    """
    if isinstance(error, StepscopeError) or type(error) is KeyboardInterrupt:
        raise error
    return f"{type(error).__name__}: {one_line(error)}"


def has_no_descriptors(error: object) -> bool:
    """Whether an operation failed since the process, or the system, has no descriptors left.

    Example:
        >>> has_no_descriptors(OSError(errno.EMFILE, "too many open files"))
        True
    """
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
