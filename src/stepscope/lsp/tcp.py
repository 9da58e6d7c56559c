"""The language server on a socket, for an editor elsewhere; the first message must hold a token.

Every connection is served by a server of its own, so editors may come and go.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidRequest
from pygls.io_ import run_async

from stepscope.accept_errors import AcceptErrors
from stepscope.lsp.language_server import StepscopeServer

_LOG = logging.getLogger(__name__)
_REFUSAL_S = 0.1  # for the refusal to be sent
_TOKEN_S = 30.0  # for the token to arrive
_MOST_CONNECTIONS = 32
_MOST_BYTES_BEFORE_TOKEN = 1 << 20  # of a message; `initialize` has a client's capabilities
_MOST_BYTES = 1 << 26


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


async def serve_tcp(
    make: Callable[[], StepscopeServer], host: str, port: int, token: str
) -> asyncio.Server:
    """Listen for editors.

    Args:
        make: a new language server.
        host: the address to listen on.
        port: the port; 0 takes any that is free.
        token: what `initializationOptions.token` of each editor must be.

    Returns:
        The listening server; its sockets have the port.
    """
    connections: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        connections.add(writer)
        try:
            await _Connection(make(), token, reader, writer).serve()
        finally:
            connections.discard(writer)
            writer.close()

    asyncio.get_running_loop().set_exception_handler(AcceptErrors(say_on_stderr))
    return await asyncio.start_server(connected, host, port, backlog=_MOST_CONNECTIONS // 2)


def say_on_stderr(line: str) -> None:
    """Show a line of the log."""
    print(f"stepscope lsp: {line}", file=sys.stderr, flush=True)


class _Connection:
    """One editor: nobody is answered, nor much read, before the token was given."""

    def __init__(
        self,
        server: StepscopeServer,
        token: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server, self._token = server, token
        self._reader, self._writer = reader, writer
        self._accepted = False
        features, protocol = server.protocol.fm.features, server.protocol
        self._initialize, self._handle = features[lsp.INITIALIZE], protocol.handle_message
        features[lsp.INITIALIZE] = self._check_token
        protocol.handle_message = self._gate  # type: ignore[method-assign]
        protocol.set_writer(writer)

    async def serve(self) -> None:
        """Answer until the editor leaves, or sends what no editor sends."""
        deadline = asyncio.get_running_loop().call_later(_TOKEN_S, self._give_up)
        # A line or a message that is too long, or a connection that breaks within one.
        broken = (ValueError, EOFError, OSError)
        try:
            with suppress(*broken):
                await run_async(
                    stop_event=Event(),
                    reader=self,
                    protocol=self._server.protocol,
                    logger=_LOG,
                    error_handler=self._server.report_server_error,
                )
        finally:
            deadline.cancel()
            await self._server.close()

    async def readline(self) -> bytes:
        """One line of a header; raises ValueError if it is too long."""
        return await self._reader.readline()

    async def readexactly(self, count: int) -> bytes:
        """The body of a message; raises ValueError if it is too long."""
        most = _MOST_BYTES if self._accepted else _MOST_BYTES_BEFORE_TOKEN
        if count > most:
            raise ValueError(f"a message of {count} bytes; at most {most} are read")
        body = await self._reader.readexactly(count)
        body.decode()  # what is not UTF-8 ends the connection, as whatever follows may be misread
        return body

    async def _check_token(self, params: lsp.InitializeParams) -> None:
        options = params.initialization_options
        given = options.get("token") if isinstance(options, Mapping) else None
        sent = str(given).encode(errors="surrogatepass")
        self._accepted = hmac.compare_digest(sent, self._token.encode())
        if not self._accepted:
            asyncio.get_running_loop().call_later(_REFUSAL_S, self._writer.close)
            raise JsonRpcInvalidRequest(
                "wrong token: send the printed one as initializationOptions.token"
            )
        await self._initialize(params)

    def _gate(self, message: Any) -> None:
        if getattr(message, "method", None) == lsp.EXIT:
            self._writer.close()  # one editor leaves: pygls would end the process, for all of them
        elif self._accepted or getattr(message, "method", None) == lsp.INITIALIZE:
            self._handle(message)

    def _give_up(self) -> None:
        if not self._accepted:
            self._writer.close()
