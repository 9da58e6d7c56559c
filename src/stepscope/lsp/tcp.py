"""The language server on a socket, for an editor elsewhere; the first message must hold a token.

Every connection is served by a server of its own, so editors may come and go. That server is made
once the token was given: a connection without it costs next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from threading import Event
from typing import Any

from lsprotocol import types as lsp
from pygls.io_ import run_async

from stepscope.lsp.handshake import WRONG_TOKEN, has_token, read_initialize, refusal
from stepscope.lsp.language_server import StepscopeServer
from stepscope.lsp.server_heap import ReturnedMemory
from stepscope.server_log import AcceptErrors

_LOG = logging.getLogger(__name__)
_REFUSAL_S = 0.1  # for the refusal to arrive
_TOKEN_S = 30.0  # for the token to arrive
_END_S = 5.0  # for the last answer to be sent
_MOST_EDITORS = 32
_MOST_WITHOUT_TOKEN = 32
_MOST_BYTES = 1 << 26
_FULL = f"{_MOST_EDITORS} editors are connected already; close one of them"
# A line or a message that is too long or cannot be read, or a connection that breaks.
_BROKEN = (ValueError, EOFError, OSError, RecursionError, asyncio.LimitOverrunError,
           asyncio.TimeoutError)  # fmt: skip


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
    places, memory = Places(), ReturnedMemory()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(make, token, reader, writer, places).serve()
        memory.return_memory()

    asyncio.get_running_loop().set_exception_handler(AcceptErrors(say_on_stderr))
    return await asyncio.start_server(connected, host, port, backlog=_MOST_WITHOUT_TOKEN)


def say_on_stderr(line: str) -> None:
    """Show a line of the log."""
    print(f"stepscope lsp: {line}", file=sys.stderr, flush=True)


class Places:
    """The open connections, so many at most.

    A new one without a token takes the place of the oldest one, so that clients which only connect
    cannot keep an editor out.
    """

    def __init__(self) -> None:
        self._without_token: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._editors: set[asyncio.StreamWriter] = set()

    def enter(self, writer: asyncio.StreamWriter) -> None:
        """A connection begins."""
        if len(self._without_token) >= _MOST_WITHOUT_TOKEN:
            oldest = next(iter(self._without_token))
            del self._without_token[oldest]
            oldest.transport.abort()
        self._without_token[writer] = None

    def accept(self, writer: asyncio.StreamWriter) -> bool:
        """A connection has given the token; whether there is a place for another editor."""
        if len(self._editors) >= _MOST_EDITORS:
            return False
        self._without_token.pop(writer, None)
        self._editors.add(writer)
        return True

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """A connection ends."""
        self._without_token.pop(writer, None)
        self._editors.discard(writer)


class Connection:
    """One connection: nothing is done for it, nor much read, before the token was given.

    Args:
        make: a new language server.
        token: that an editor must send.
        reader: of the connection.
        writer: of the connection.
        places: of all connections.
    """

    def __init__(
        self,
        make: Callable[[], StepscopeServer],
        token: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        places: Places,
    ) -> None:
        self._make, self._token, self._places = make, token, places
        self._reader, self._writer = reader, writer
        self._first = BytesIO()  # `initialize`, for the server to read once more

    async def serve(self) -> None:
        """Answer until the editor leaves, or sends what no editor sends."""
        self._places.enter(self._writer)
        server: StepscopeServer | None = None
        try:
            if await self._is_accepted():
                server = self._make()
                await self._answer(server)
        except _BROKEN as error:
            error.__traceback__ = None  # the reader keeps the error, and so whatever frames hold
        finally:
            self._places.leave(self._writer)
            await self._end()
            if server is not None:
                await server.close()

    async def readline(self) -> bytes:
        """One line of a header; raises ValueError if it is too long."""
        return self._first.readline() or await self._reader.readline()

    async def readexactly(self, count: int) -> bytes:
        """The body of a message; raises ValueError if it is too long."""
        if count > _MOST_BYTES:
            raise ValueError(f"a message of {count} bytes; at most {_MOST_BYTES} are read")
        body = self._first.read(count) or await self._reader.readexactly(count)
        body.decode()  # what is not UTF-8 ends the connection, as whatever follows may be misread
        return body

    def write(self, data: bytes) -> None:
        """Send to the editor; nothing to one that has gone, and one that never reads is cut off."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() > _MOST_BYTES:
            transport.abort()
        elif not transport.is_closing():
            self._writer.write(data)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    async def _is_accepted(self) -> bool:
        first, message = await asyncio.wait_for(read_initialize(self._reader), _TOKEN_S)
        self._first = BytesIO(first)
        reason = "" if has_token(message, self._token) else WRONG_TOKEN
        if not reason and not self._places.accept(self._writer):
            reason = _FULL
        if reason:
            self.write(refusal(message, reason))
            await asyncio.sleep(_REFUSAL_S)
        return not reason

    async def _end(self) -> None:
        """Close the connection, also to one who reads no more."""
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _END_S)
        self._writer.transport.abort()

    async def _answer(self, server: StepscopeServer) -> None:
        protocol = server.protocol
        handle = protocol.handle_message

        def handle_message(message: Any) -> None:
            if getattr(message, "method", None) == lsp.EXIT:
                self._writer.close()  # pygls would end the process, for all editors
            else:
                handle(message)

        protocol.handle_message = handle_message  # type: ignore[method-assign]
        protocol.set_writer(self)
        await run_async(
            stop_event=Event(), reader=self, protocol=protocol, logger=_LOG,
            error_handler=server.report_server_error,
        )  # fmt: skip
