"""Clients of the language server that misbehave: none of them may disturb the others."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from soak_clients.crowd import Client, Crowd
from soak_clients.edited_document import entry_and_target
from soak_clients.http_client import reset
from soak_clients.lsp_client import Connection
from soak_clients.lsp_server import LspServer
from soak_clients.text_synchronization import open_document

_FLOOD = 100


class OddEditors:
    """Clients that misbehave, each in one way."""

    def __init__(self, server: LspServer, crowd: Crowd) -> None:
        self._server, self._crowd = server, crowd
        self.port, self.tally = server.port, server.tally

    def all(self) -> list[Client]:
        """All of them."""
        return [
            self._half_open,
            self._wrong_token,
            self._huge_message,
            self._no_protocol,
            self._die,
            self._connect_in_a_flood,
        ]

    async def _half_open(self, choose: random.Random) -> None:
        """Nothing, or half of a header, for as long as the server bears it or the client likes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"Content-Length: 30\r\n\r\n{"[: choose.randrange(24)])
        found = b""
        with suppress(OSError, TimeoutError):
            found = await asyncio.wait_for(reader.read(100), choose.choice([1, 5, 40]))
        self.tally.check(not found, "half-open connections", repr(found))
        writer.close()

    async def _wrong_token(self, choose: random.Random) -> None:
        client = await Connection.to(self.port)
        try:
            given = choose.choice(["", self._server.token[:-1], "\ud800", "x" * 100_000])
            answer = await client.start(given)
            self.tally.check("token" in str(answer.get("error")), "wrong tokens", str(answer)[:200])
        finally:
            client.close()

    async def _huge_message(self, choose: random.Random) -> None:
        """What is too long before the token was given ends the connection without an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError):
            writer.write(b"Content-Length: 4000000000\r\n\r\n")
            for _ in range(64):
                writer.write(b"x" * (1 << 16))
                await writer.drain()
        await self._ends_silently("huge messages", reader, writer)

    async def _no_protocol(self, choose: random.Random) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        noise = choose.randbytes(choose.randrange(1, 4000))
        with suppress(OSError):
            writer.write(choose.choice([b"Content-Length: 9\r\n\r\n" + b"\xff" * 9, noise * 60]))
            writer.write_eof()
        await self._ends_silently("what is no message", reader, writer)

    async def _ends_silently(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        found = b""
        with suppress(OSError):
            found = await asyncio.wait_for(reader.read(1000), 120)
        self.tally.check(b'"result"' not in found, kind, repr(found[:100]))
        writer.close()

    async def _die(self, choose: random.Random) -> None:
        """An editor that dies in the middle of a message, perhaps while it measures."""
        client = await self._server.editor()
        document = entry_and_target(self._server.folder, next(self._server.numbers), choose)[0]
        open_document(client, document)
        if choose.random() < 0.1:
            await client.ask("stepscope/measure", {"uri": document.uri})
            await asyncio.sleep(choose.uniform(0, 2))
        client.writer.write(b"Content-Length: 1000\r\n\r\n{")
        await asyncio.sleep(choose.uniform(0, 0.1))
        client.close()
        reset(client.writer)
        self.tally.count("editors that died")

    async def _connect_in_a_flood(self, choose: random.Random) -> None:
        """More connections than the server holds; afterwards it answers as before."""
        await asyncio.sleep(choose.uniform(10, 40))
        async with self._crowd.flood():
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", self.port) for _ in range(_FLOOD)),
                return_exceptions=True,
            )
            for one in opened:
                if not isinstance(one, BaseException):
                    reset(one[1])
            await self._until_over()
        self.tally.count("connections of floods", _FLOOD)
        client = await self._server.editor()
        await client.end()

    async def _until_over(self) -> None:
        """The server takes connections in their order, so one that it answers is the last."""
        client = await Connection.to(self.port)
        try:
            await client.start("")
        finally:
            client.close()
