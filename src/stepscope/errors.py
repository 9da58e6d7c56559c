"""Every error that stepscope raises on purpose.

    StepscopeError              exit code 2, printed as one line without a traceback
    ├── IngestError             a file cannot be read as a trace
    ├── TraceError              a trace lacks what was asked of it (a table, a column, a step)
    ├── QueryError              the SQL of `stepscope query` is wrong
    ├── GraphError              a dependency graph, or a change of it, does not hold together
    ├── ChangeError             a what-if change does not apply, or is written wrongly
    ├── RuleError               a rule of the user's cannot be loaded, or fails
    ├── CaptureError            a training script cannot be run or recorded
    ├── ServeError              the page cannot be served, or was asked for something wrong
    └── BatchError              a batch size cannot be found, changed or measured
        └── AmbiguousBatchSize  there are several, and which one is meant cannot be told

A message says what was expected, what was found, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StepscopeError(Exception):
    """The root: anything stepscope says about its input or its use."""

    exit_code = 2


class IngestError(StepscopeError):
    """A file cannot be read as a trace."""


class TraceError(StepscopeError):
    """A trace lacks what was asked of it."""


class QueryError(StepscopeError):
    """The SQL of `stepscope query` is wrong."""


class GraphError(StepscopeError):
    """A dependency graph, or a change of it, does not hold together."""


class ChangeError(StepscopeError):
    """A what-if change does not apply, or is written wrongly."""


class RuleError(StepscopeError):
    """A rule of the user's cannot be loaded, or fails."""


class CaptureError(StepscopeError):
    """A training script cannot be run or recorded."""


class BatchError(StepscopeError):
    """A batch size cannot be found, changed or measured.

    Attributes:
        file: the file to look at, where there is one.
        line: the line in it, from 1.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class AmbiguousBatchSize(BatchError):
    """There are several batch sizes, and which one is meant cannot be told.

    Attributes:
        candidates: the places to choose from.
    """

    def __init__(self, message: str, candidates: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class ServeError(StepscopeError):
    """The page cannot be served, or was asked for something wrong; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
