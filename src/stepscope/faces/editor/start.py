"""Starting the language server, and what it writes to standard error."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress

from pygls.exceptions import JsonRpcException

from stepscope.base.server_log import limit_log
from stepscope.errors import ServeError
from stepscope.faces.editor.features import language_server
from stepscope.faces.editor.measuring import Measuring
from stepscope.faces.editor.tcp import say_on_stderr, serve_tcp


def start_on_streams() -> None:
    """Serve one editor on standard input and output until it leaves; nothing else writes there."""
    log_own_faults()
    limit_log(say_on_stderr)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream, redirect_stdout(sys.stderr):
        language_server(Measuring()).start_io(stdout=stream)


def start_on_port(host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve editors on a port until interrupted.

    Raises:
        ServeError: the port cannot be listened on.
    """

    async def serve() -> None:
        token = secrets.token_urlsafe(24)
        server = await serve_tcp(lambda: language_server(Measuring()), host, port, token)
        address = server.sockets[0].getsockname()
        say(f"listening on {address[0]}:{address[1]}")
        say(f"token {token}")
        async with server:
            await server.serve_forever()

    log_own_faults()
    limit_log(say_on_stderr)
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve())
    except OSError as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from error


def log_own_faults() -> None:
    """From now on pygls logs only what went wrong in this server.

    It would log whatever an editor does wrong with a traceback, although the editor gets it as an
    answer.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_is_own_fault)
    logger = logging.getLogger("pygls")
    logger.handlers[:] = [handler]
    logger.propagate = False


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Whether a record of pygls is about an exception that no message or connection explains."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    error = error or next((argument for argument in arguments if isinstance(argument, Exception)), None)
    if record.levelno < logging.ERROR or error is None:
        return False
    if isinstance(error, JsonRpcException):
        # A handler that failed comes as a traceback; what it failed with may be the editor's fault.
        return bool(error.data) and not error.message.startswith(JsonRpcException.__module__)
    return not isinstance(error, (ConnectionError, json.JSONDecodeError, RecursionError))
