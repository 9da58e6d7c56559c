"""Where the server listens."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from stepscope.errors import ServeError
from stepscope.faces.page.server import TimedProtocol, listen, most_connections


def test_answers_are_not_held_back_for_fuller_packets() -> None:
    """asyncio turns that off for sockets that name TCP as their protocol, and for no others."""
    with listen(None) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_it_listens_on_this_machine_alone() -> None:
    with listen(None) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_a_second_server_takes_another_port() -> None:
    with listen(None) as one, listen(None) as other:
        assert one.getsockname() != other.getsockname()


def test_a_port_that_was_asked_for_is_taken_or_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"cannot listen on 127.0.0.1:{port}: address"):
            listen(port)


class Impatient(TimedProtocol):
    """Waits hardly at all, but longer than other work may stop this process."""

    headers_s = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine"})


async def answers_to(protocol: type[TimedProtocol], *parts: bytes) -> bytes:
    """All that a server sends to a client that sends this and then waits."""
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    with listen(None) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        for part in parts:
            writer.write(part)
        received = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        server.should_exit = True
        await serving
    return received


@pytest.mark.parametrize("parts", [(), (b"GET / HTTP/1.1\r\nHost: x\r\n",)])
def test_a_client_that_does_not_finish_its_headers_is_cut_off(parts: tuple[bytes, ...]) -> None:
    assert asyncio.run(answers_to(Impatient, *parts)) == b""


@pytest.mark.main
def test_a_whole_request_is_answered_and_the_next_has_to_be_whole_too() -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    received = asyncio.run(answers_to(Impatient, request, b"GET / HTTP/1.1\r\n"))
    assert received.count(b"fine") == 1


class Crowded(TimedProtocol):
    """Holds one connection."""

    most_connections = 1


def test_a_connection_too_many_is_closed_and_the_next_is_served_when_one_has_gone() -> None:
    async def scenario() -> list[bytes]:
        config = uvicorn.Config(app, http=Crowded, lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        with listen(None) as listening:
            serving = asyncio.create_task(server.serve([listening]))
            while not server.started:
                await asyncio.sleep(0.01)
            address = listening.getsockname()
            _, first = await asyncio.open_connection(*address)
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            reader, second = await asyncio.open_connection(*address)
            refused = await asyncio.wait_for(reader.read(), 30)
            for writer in (first, second):
                writer.close()
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            reader, third = await asyncio.open_connection(*address)
            third.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            served = await asyncio.wait_for(reader.read(), 30)
            third.close()
            server.should_exit = True
            await serving
        return [refused, served]

    refused, served = asyncio.run(scenario())
    assert refused == b""
    assert b"fine" in served


@pytest.mark.parametrize(("limit", "least", "most"), [(64, 2, 16), (8, 2, 2), (-1, 128, 128)])
def test_most_descriptors_are_left_for_the_files_that_are_read(
    monkeypatch: pytest.MonkeyPatch, limit: int, least: int, most: int
) -> None:
    import resource

    limit = resource.RLIM_INFINITY if limit < 0 else limit
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert least <= most_connections() <= most
