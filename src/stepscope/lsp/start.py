"""Starting the language server."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress

from stepscope.errors import ServeError
from stepscope.lsp.features import language_server
from stepscope.lsp.language_server import StepscopeServer
from stepscope.lsp.measuring import Measuring
from stepscope.lsp.server_heap import share_heap
from stepscope.lsp.server_log import log_own_faults
from stepscope.lsp.tcp import new_token, say_on_stderr, serve_tcp
from stepscope.server_log import limit_log


def new_server() -> StepscopeServer:
    """A language server that measures for real."""
    return language_server(Measuring())


def start_on_streams() -> None:
    """Serve one editor on standard input and output until it leaves; nothing else writes there."""
    share_heap()
    log_own_faults()
    limit_log(say_on_stderr)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream, redirect_stdout(sys.stderr):
        new_server().start_io(stdout=stream)


def start_on_port(host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve editors on a port until interrupted.

    Args:
        host: the address to listen on.
        port: 0 takes one that is free.
        say: called with address and token.

    Raises:
        ServeError: the port cannot be listened on.
    """

    share_heap()
    limit_log(say_on_stderr)

    async def serve() -> None:
        token = new_token()
        server = await serve_tcp(new_server, host, port, token)
        gc.freeze()  # what stays: collections are short and frequent, so sessions leave nothing
        address = server.sockets[0].getsockname()
        say(f"listening on {address[0]}:{address[1]}")
        say(f"token {token}")
        async with server:
            await server.serve_forever()

    log_own_faults()
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve())
    except OSError as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from error
