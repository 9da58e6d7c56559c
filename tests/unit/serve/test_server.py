"""Where the server listens."""

from __future__ import annotations

import socket

import pytest

from stepscope.errors import ServeError
from stepscope.serve.server import listen


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
        with pytest.raises(ServeError, match=f"expected port {port} to be free"):
            listen(port)
