"""Every error that stepscope raises on purpose.

    StepscopeError              exit code 2, printed as one line without a traceback
    ├── IngestError             a file cannot be read as a trace
    ├── TraceError              a trace lacks what was asked of it (a table, a column, a step)
    ├── QueryError              the SQL of `stepscope query` is wrong
    ├── GraphError              a dependency graph, or a change of it, does not hold together
    ├── ChangeError             a what-if change does not apply, or is written wrongly
    └── CaptureError            a training script cannot be run or recorded

A message says what was expected, what was found, where, and what to do next.
"""

from __future__ import annotations


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


class CaptureError(StepscopeError):
    """A training script cannot be run or recorded."""
