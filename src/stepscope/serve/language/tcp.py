"""The language server on a socket, for an editor elsewhere; the first message must hold a token.

Every connection is served by a server of its own, so editors may come and go.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidRequest
from pygls.io_ import run_async

from stepscope.serve.language.server import StepscopeServer

_LOG = logging.getLogger(__name__)
_REFUSAL_S = 0.1  # for the refusal to be sent


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
        The listening server; its sockets tell the port.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = make()
        _guard(server, token, writer)
        server.protocol.set_writer(writer)
        try:
            await run_async(
                stop_event=Event(),
                reader=reader,
                protocol=server.protocol,
                logger=_LOG,
                error_handler=server.report_server_error,
            )
        finally:
            await server.close()
            writer.close()

    return await asyncio.start_server(connected, host, port)


def _guard(server: StepscopeServer, token: str, writer: asyncio.StreamWriter) -> None:
    """Answer nobody who does not know the token."""
    features, protocol = server.protocol.fm.features, server.protocol
    initialize, handle = features[lsp.INITIALIZE], protocol.handle_message
    accepted = False

    async def guarded(params: lsp.InitializeParams) -> None:
        nonlocal accepted
        options = params.initialization_options
        given = options.get("token") if isinstance(options, Mapping) else None
        accepted = hmac.compare_digest(str(given).encode(), token.encode())
        if not accepted:
            asyncio.get_running_loop().call_later(_REFUSAL_S, writer.close)
            raise JsonRpcInvalidRequest("expected initializationOptions.token as printed")
        await initialize(params)

    def gated(message: Any) -> None:
        if accepted or getattr(message, "method", None) == lsp.INITIALIZE:
            handle(message)

    features[lsp.INITIALIZE] = guarded
    protocol.handle_message = gated  # type: ignore[method-assign]
