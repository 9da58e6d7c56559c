"""Where the server listens."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from stepscope.errors import ServeError
from stepscope.serve.server import TimedProtocol, listen


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
    """Waits hardly at all."""

    headers_s = 0.05


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


def test_a_whole_request_is_answered_and_the_next_has_to_be_whole_too() -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    received = asyncio.run(answers_to(Impatient, request, b"GET / HTTP/1.1\r\n"))
    assert received.count(b"fine") == 1
