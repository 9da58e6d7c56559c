"""Starting the language server: on standard streams, or on a socket for an editor elsewhere.

On a socket the first message must hold a token. Every connection is served by a server of its own, so editors
may come and go. That server is made once the token was given: a connection without it costs next to nothing.
"""

import asyncio
import hmac
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any

from pygls.exceptions import JsonRpcException
from pygls.io_ import StdoutWriter

from stepscope.base.server_log import limit_log
from stepscope.errors import ServeError
from stepscope.faces.editor.features import language_server
from stepscope.faces.editor.language_server import StepscopeServer
from stepscope.faces.editor.measuring import Measuring

# Also after the rest of a broken message, and without its number where that is wrong.
_LENGTH = re.compile(rb"Content-Length:\s*(\d{1,9}(?=\s*$))?", re.IGNORECASE)
_INVALID_REQUEST = -32600  # of JSON-RPC
_MOST_INITIALIZE_BYTES = 1 << 20  # a client's capabilities
_MOST_HEADER_BYTES = 1 << 16  # of a line; asyncio's limit
_MOST_MESSAGE_BYTES = 1 << 23  # as JSON that is all brackets takes 25 times its size, and a second
_MOST_BYTES = 1 << 26  # of what waits to be sent
_MOST_WITHOUT_TOKEN = 32  # connections; editors send the token at once
_TOKEN_S = 30.0  # for the token to arrive
_REFUSAL_S = 0.1  # for the refusal to arrive
_END_S = 5.0  # for the last answer to be sent
WRONG_TOKEN = "wrong token: send the printed one as initializationOptions.token"
# A header or a message that is too long or cannot be read, or a connection that breaks.
_BROKEN = (ValueError, EOFError, OSError, RecursionError, asyncio.LimitOverrunError, asyncio.TimeoutError)


def start_on_streams() -> None:
    """Serve one editor on standard input and output until it leaves; nothing else writes there."""
    log_own_faults()
    limit_log("lsp")
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")

    async def serve() -> None:
        line, part = partial(asyncio.to_thread, source.readline), partial(asyncio.to_thread, source.read)
        server = language_server(Measuring())
        server.protocol.set_writer(StdoutWriter(sink))
        await _answer(server, partial(_next_message, partial(line, _MOST_HEADER_BYTES), part))

    with sink, redirect_stdout(sys.stderr), suppress(EOFError, KeyboardInterrupt):
        asyncio.run(serve())


def start_on_port(host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve editors on a port until interrupted; raises ServeError if the port cannot be listened on."""

    async def serve() -> None:
        token = secrets.token_urlsafe(24)
        server = await serve_tcp(lambda: language_server(Measuring()), host, port, token)
        address = server.sockets[0].getsockname()
        say(f"listening on {address[0]}:{address[1]}")
        say(f"token {token}")
        async with server:
            await server.serve_forever()

    log_own_faults()
    limit_log("lsp")
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve())
    except OSError as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from error


def log_own_faults() -> None:
    """From now on pygls logs only what went wrong in this server.

    It would log whatever an editor does wrong with a traceback, although the editor gets it as an answer.
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


# -- on a socket


async def serve_tcp(make: Callable[[], StepscopeServer], host: str, port: int, token: str) -> asyncio.Server:
    """Listen for editors.

    Returns:
        The listening server; its sockets have the port.
    """
    return await asyncio.start_server(
        connection_handler(make, token), host, port, backlog=_MOST_WITHOUT_TOKEN
    )


def connection_handler(
    make: Callable[[], StepscopeServer], token: str
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
    """What answers each connection, as `serve_tcp` describes."""
    without_token: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(without_token) >= _MOST_WITHOUT_TOKEN:  # so that they keep no editor out
            next(iter(without_token)).transport.abort()
        without_token[writer] = None
        try:
            read = partial(_next_message, reader.readline, reader.readexactly)
            first = await asyncio.wait_for(_initialize(read), _TOKEN_S)
            without_token.pop(writer, None)
            if has_token(first, token):
                server = make()
                server.protocol.set_writer(_Output(writer))
                await _answer(server, read, json.dumps(first).encode())
            else:
                writer.write(_refusal(first))
                await asyncio.sleep(_REFUSAL_S)
        except _BROKEN:
            pass  # whatever follows would be misread
        finally:
            without_token.pop(writer, None)
            await _end(writer)

    return connected


def has_token(message: Mapping[str, Any], token: str) -> bool:
    """Whether an `initialize` holds the token.

    Example:
        >>> has_token({"params": {"initializationOptions": {"token": "s3cret"}}}, "s3cret")
        True
    """
    params = message.get("params")
    options = params.get("initializationOptions") if isinstance(params, Mapping) else None
    given = options.get("token") if isinstance(options, Mapping) else None
    return hmac.compare_digest(str(given).encode(errors="surrogatepass"), token.encode())


class _Output:
    """What pygls writes to: sends nothing to an editor that has gone, or that never reads."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        transport = self._writer.transport
        if transport.get_write_buffer_size() > _MOST_BYTES:
            transport.abort()
        elif not transport.is_closing():
            self._writer.write(data)

    def close(self) -> None:
        self._writer.close()


async def _initialize(read: Callable[..., Awaitable[bytes]]) -> dict[str, Any]:
    """Read until `initialize`; other messages before it are ignored."""
    while True:
        message = json.loads(await read(most_bytes=_MOST_INITIALIZE_BYTES))
        if isinstance(message, dict) and message.get("method") == "initialize":
            return message


async def _answer(server: StepscopeServer, read: Callable[[], Awaitable[bytes]], first: bytes = b"") -> None:
    """Answer until the editor leaves; the exit that it asks for is its own, not the process's."""
    try:
        while not server.protocol.has_left:
            text, first = first or await read(), b""
            try:
                server.protocol.receive(text)
            except Exception as error:  # of one message, which the next ones do not depend on
                server.report_server_error(error, JsonRpcException)
    finally:
        await server.close()


async def _next_message(
    line: Callable[[], Awaitable[bytes]],
    part: Callable[[int], Awaitable[bytes]],
    most_bytes: int = _MOST_MESSAGE_BYTES,
) -> bytes:
    """The body of the next message, empty if its length is wrong; EOFError where the editor has gone."""
    length = None
    while header := await line():
        if found := _LENGTH.search(header):
            length = int(found[1] or most_bytes + 1)
        elif length is not None and not header.strip():
            return await part(length) if length <= most_bytes else b""
    raise EOFError


def _refusal(message: Mapping[str, Any]) -> bytes:
    error = {"code": _INVALID_REQUEST, "message": WRONG_TOKEN}
    body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close the connection, also to one who reads no more."""
    writer.close()
    with suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), _END_S)
    writer.transport.abort()
