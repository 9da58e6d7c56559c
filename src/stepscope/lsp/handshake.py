"""The first message over a socket: an editor is served only if it holds the token."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

_MOST_BYTES = 1 << 20  # of a message; `initialize` has a client's capabilities
_LENGTH = re.compile(rb"^Content-Length: (\d+)\r\n", re.MULTILINE)
_INVALID_REQUEST = -32600  # of JSON-RPC
WRONG_TOKEN = "wrong token: send the printed one as initializationOptions.token"


async def read_initialize(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, Any]]:
    """Read until `initialize`; other messages before it are ignored.

    Args:
        reader: of the connection.

    Returns:
        The bytes of the message with its header, and the message.

    Raises:
        ValueError, RecursionError, asyncio.LimitOverrunError: what no editor sends.
        EOFError, OSError: the connection ended.
    """
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None or int(length[1]) > _MOST_BYTES:
            raise ValueError(
                f"expected a message of up to {_MOST_BYTES} bytes, found {head[:80]!r}"
            )
        body = await reader.readexactly(int(length[1]))
        message = json.loads(body.decode())
        if isinstance(message, dict) and message.get("method") == "initialize":
            return head + body, message


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


def refusal(message: Mapping[str, Any], reason: str) -> bytes:
    """The answer to an `initialize` that is refused, with its header."""
    error = {"code": _INVALID_REQUEST, "message": reason}
    body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
