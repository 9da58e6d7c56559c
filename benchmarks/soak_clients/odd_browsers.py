"""Clients of `stepscope view` that misbehave: none of them may disturb the others."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing, suppress

from soak_clients.browsers import Browsers
from soak_clients.crowd import Client, Crowd
from soak_clients.http_client import receive, reset, rest

_HEADERS_S = 10.0  # the time limit of the server
_FLOOD = 200


class OddBrowsers:
    """Clients that misbehave, each in one way."""

    def __init__(self, browsers: Browsers, crowd: Crowd) -> None:
        self._browsers, self._crowd = browsers, crowd
        self.tally = browsers.tally

    def all(self) -> list[Client]:
        """All of them."""
        return [
            self._half_open,
            self._silent,
            self._wrong_token,
            self._foreign,
            self._huge_body,
            self._huge_header,
            self._no_http,
            self._abort,
            self._slow_reader,
            self._pipeline,
            self._connect_in_a_flood,
        ]

    async def _half_open(self, choose: random.Random) -> None:
        """Half of a request, and then nothing: the server closes within its time limit."""
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            whole = self._browsers.address.request(self._browsers.large)
            writer.write(whole[: choose.randrange(1, len(whole) - 4)])
            await self._closes("half of a request", reader)

    async def _silent(self, choose: random.Random) -> None:
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            await self._closes("a silent connection", reader)

    async def _closes(self, kind: str, reader: asyncio.StreamReader) -> None:
        began = asyncio.get_running_loop().time()
        found = await rest(reader)
        took = asyncio.get_running_loop().time() - began
        right = took < 3 * _HEADERS_S and not found.startswith(b"HTTP/1.1 200")
        self.tally.check(right, kind, f"closed after {took:.0f} s with {found[:80]!r}")

    async def _wrong_token(self, choose: random.Random) -> None:
        given = choose.choice(["", "x" * 43, self._browsers.address.token[:-1], "\u00ff" * 43])
        headers = choose.choice(
            [
                {"Authorization": f"Bearer {given}"},
                {
                    "Authorization": "",
                    "Cookie": f"stepscope_{self._browsers.address.port}=9999999999.{given}",
                },
            ]
        )
        answer = await self._browsers.address.ask(self._browsers.large, **headers)
        self.tally.check(answer.status == 401, "wrong tokens", f"{headers}: {answer.status}")

    async def _foreign(self, choose: random.Random) -> None:
        headers = choose.choice([{"Host": "example.org"}, {"Origin": "http://127.0.0.1:1"}])
        answer = await self._browsers.address.ask("/api/traces", **headers)
        self.tally.check(answer.status == 403, "foreign pages", f"{headers}: {answer.status}")

    async def _huge_body(self, choose: random.Random) -> None:
        """A body of gigabytes: it is refused, and not read."""
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            length = choose.choice(["4000000000", "1"])
            writer.write(self._browsers.address.request("/api/traces", Content_Length=length))
            answer = await receive(reader)
            self.tally.check(answer.status == 413, "huge bodies", f"{length}: {answer.status}")
            with suppress(OSError):
                for _ in range(64):
                    writer.write(b"x" * (1 << 16))
                    await writer.drain()

    async def _huge_header(self, choose: random.Random) -> None:
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            with suppress(OSError):
                writer.write(self._browsers.address.request("/", Cookie="x" * (1 << 20)))
                await writer.drain()
            found = await rest(reader)
            right = not found or found.startswith(b"HTTP/1.1 4")
            self.tally.check(right, "huge headers", repr(found[:80]))

    async def _no_http(self, choose: random.Random) -> None:
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            with suppress(OSError):
                writer.write(choose.randbytes(choose.randrange(1, 4000)) + b"\r\n\r\n")
            found = await rest(reader)
            right = not found or found.startswith(b"HTTP/1.1 4")
            self.tally.check(right, "what is not HTTP", repr(found[:80]))

    async def _abort(self, choose: random.Random) -> None:
        """A download that is given up, as a browser does when its tab is closed."""
        reader, writer = await self._browsers.address.connect()
        writer.write(self._browsers.address.request(self._browsers.large, Accept_Encoding="identity"))
        if choose.random() < 0.7:
            await asyncio.wait_for(reader.read(choose.randrange(1, 1 << 14)), 120)
        reset(writer)
        self.tally.count("aborted downloads")

    async def _slow_reader(self, choose: random.Random) -> None:
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            writer.write(self._browsers.address.request(self._browsers.large, Accept_Encoding="identity"))
            await asyncio.sleep(choose.uniform(0, 5))
            self._browsers.compare("slow readers", self._browsers.large, await receive(reader))

    async def _pipeline(self, choose: random.Random) -> None:
        """Several requests at once: the answers come in order."""
        reader, writer = await self._browsers.address.connect()
        with closing(writer):
            paths = choose.choices(list(self._browsers.reference), k=4)
            writer.write(b"".join(self._browsers.address.request(path) for path in paths))
            for path in paths:
                self._browsers.compare("pipelined requests", path, await receive(reader))

    async def _connect_in_a_flood(self, choose: random.Random) -> None:
        """More connections than the server holds; afterwards it answers as before."""
        await asyncio.sleep(choose.uniform(5, 20))
        async with self._crowd.flood():
            opened = await asyncio.gather(
                *(self._browsers.address.connect() for _ in range(_FLOOD)), return_exceptions=True
            )
            for one in opened:
                if not isinstance(one, BaseException):
                    reset(one[1])
            await asyncio.sleep(1)
        self.tally.count("connections of floods", _FLOOD)
        self._browsers.compare(
            "questions after a flood", "/index.js", await self._browsers.address.ask("/index.js")
        )
