"""What the language server writes to standard error: its own faults, not those of editors.

pygls logs whatever an editor does wrong with a traceback, although the editor gets it as an answer.
"""

from __future__ import annotations

import json
import logging

from pygls.exceptions import JsonRpcException


def log_own_faults() -> None:
    """From now on pygls logs only what went wrong in this server."""
    handler = logging.StreamHandler()
    handler.addFilter(is_own_fault)
    logger = logging.getLogger("pygls")
    logger.handlers[:] = [handler]
    logger.propagate = False


def is_own_fault(record: logging.LogRecord) -> bool:
    """Whether a record of pygls is about an exception that no message or connection explains.

    Example:
        >>> is_own_fault(logging.LogRecord("pygls", logging.WARNING, "", 1, "unknown", (), None))
        False
    """
    error = _error_in(record)
    if record.levelno < logging.ERROR or error is None:
        return False
    if isinstance(error, JsonRpcException):
        # A handler that failed comes as a traceback; what it failed with may be the editor's fault.
        return bool(error.data) and not error.message.startswith(JsonRpcException.__module__)
    return not isinstance(error, (ConnectionError, json.JSONDecodeError, RecursionError))


def _error_in(record: logging.LogRecord) -> BaseException | None:
    if record.exc_info and record.exc_info[1]:
        return record.exc_info[1]
    arguments = record.args if isinstance(record.args, tuple) else ()
    return next((one for one in arguments if isinstance(one, Exception)), None)
