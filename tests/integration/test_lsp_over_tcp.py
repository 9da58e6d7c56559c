"""The language server on a port: nobody is answered who does not know the token."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from stepscope.faces.editor.features import language_server
from stepscope.faces.editor.start import serve_tcp


class Nothing:
    def prepare(self) -> None: ...
    async def close(self) -> None: ...
    async def __call__(self, *_: Any) -> Any: ...


async def ask(port: int, token: str) -> tuple[dict[str, Any], bytes]:
    """The answer to `initialize`, and what a further request brings."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    options = {"token": token}
    send(writer, 1, "initialize", {"capabilities": {}, "initializationOptions": options})
    answer = await receive(reader)
    send(writer, 2, "shutdown", None)
    rest = await asyncio.wait_for(reader.read(1 << 16), 30)
    writer.close()
    return answer, rest


def send(writer: asyncio.StreamWriter, number: int, method: str, params: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    header = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = next(int(line.split(b":")[1]) for line in header.splitlines() if b"Length" in line)
    return json.loads(await reader.readexactly(length))


def test_only_who_knows_the_token_is_answered():
    async def scenario():
        server = await serve_tcp(lambda: language_server(Nothing()), "127.0.0.1", 0, "s3cret")
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await ask(port, "guess"), await ask(port, "s3cret"), await ask(port, "s3cret")

    (refused, silence), (first, more), (second, _) = asyncio.run(scenario())
    assert "token" in refused["error"]["message"]
    assert b'"result"' not in silence
    for answer in (first, second):  # editors come and go
        assert answer["result"]["serverInfo"]["name"] == "stepscope"
    assert b'"id": 2' in more or b'"id":2' in more


def test_an_editor_that_leaves_does_not_end_the_server():
    async def leave(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        options = {"token": "s3cret"}
        send(writer, 1, "initialize", {"capabilities": {}, "initializationOptions": options})
        await receive(reader)
        send(writer, 2, "shutdown", None)
        await receive(reader)
        body = b'{"jsonrpc": "2.0", "method": "exit"}'
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        rest = await asyncio.wait_for(reader.read(1 << 16), 30)
        writer.close()
        return rest

    async def scenario():
        server = await serve_tcp(lambda: language_server(Nothing()), "127.0.0.1", 0, "s3cret")
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await leave(port), await ask(port, "s3cret")

    rest, (answer, _) = asyncio.run(scenario())
    assert rest == b""
    assert answer["result"]["serverInfo"]["name"] == "stepscope"


def test_what_no_editor_sends_ends_the_connection_and_nothing_else():
    async def rest_after(port: int, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        rest = b""
        with suppress(ConnectionError):
            rest = await asyncio.wait_for(reader.read(1 << 16), 30)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return rest

    parameters = {"capabilities": {}, "initializationOptions": {"token": "\ud800"}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}
    half = json.dumps(asked)
    odd = {
        "a huge message": b"Content-Length: 400000000\r\n\r\n",
        "an endless header": b"x" * (1 << 20),
        "not UTF-8": b"Content-Length: 2\r\n\r\n\xff\xfe",
        "half of a character": b"Content-Length: %d\r\n\r\n%b" % (len(half), half.encode()),
    }

    async def scenario():
        server = await serve_tcp(lambda: language_server(Nothing()), "127.0.0.1", 0, "s3cret")
        port = server.sockets[0].getsockname()[1]
        async with server:
            rests = [await rest_after(port, sent) for sent in odd.values()]
            return rests, await ask(port, "s3cret")

    rests, (answer, _) = asyncio.run(scenario())
    assert not any(b'"result"' in rest for rest in rests)
    assert answer["result"]["serverInfo"]["name"] == "stepscope"


def test_clients_that_only_connect_keep_no_editor_out():
    made: list[object] = []

    def make():
        made.append(server := language_server(Nothing()))
        return server

    async def scenario():
        server = await serve_tcp(make, "127.0.0.1", 0, "s3cret")
        port = server.sockets[0].getsockname()[1]
        async with server:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            answer, _ = await ask(port, "s3cret")
            for _, writer in silent:
                writer.close()
            return answer

    answer = asyncio.run(scenario())
    assert answer["result"]["serverInfo"]["name"] == "stepscope"
    assert len(made) == 1  # nothing is made for a connection without the token
