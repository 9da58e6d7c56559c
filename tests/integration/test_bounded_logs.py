"""Clients that send nonsense cannot fill the log of a server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STEPSCOPE = [sys.executable, "-m", "stepscope"]
CLIENTS = 300
MOST_LINES = 100  # the first of a kind may have a traceback
NONSENSE = [
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"Content-Length: 2\r\n\r\n{]",
    b"Content-Length: 999999999\r\n\r\n{",
    b'Content-Length: 19\r\n\r\n{"method":"no/such"',
    b"Content-Length: x\r\n\r\n",
]


@contextmanager
def server(*words: str, port_of: Callable[[str], int]) -> Iterator[tuple[int, list[str]]]:
    """The port of a running server, and what it wrote to stderr once it has ended."""
    process = subprocess.Popen(
        [*STEPSCOPE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    assert process.stdout
    try:
        yield port_of(process.stdout.readline()), lines
    finally:
        process.terminate()
        lines += process.communicate(timeout=60)[1].splitlines()


def send_nonsense(port: int) -> None:
    for number in range(CLIENTS):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(NONSENSE[number % len(NONSENSE)])
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass


def test_the_log_of_the_page(tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    event = {"ph": "X", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0, "dur": 9}
    trace.write_text(json.dumps([event]))
    words = ("view", str(trace), "--no-browser", "--no-cache")
    with server(*words, port_of=lambda line: int(line.split(":")[2].split("/")[0])) as (port, log):
        send_nonsense(port)
    assert 0 < len(log) < MOST_LINES, log[:20]


def test_the_log_of_the_language_server() -> None:
    with server("lsp", "--port", "0", port_of=lambda line: int(line.rpartition(":")[2])) as (port, log):
        send_nonsense(port)
    assert len(log) < MOST_LINES, log[:20]


@pytest.mark.parametrize("text", [b"{]", b'{"jsonrpc": "2.0", "method": 5}', b"\xff\xfe"])
def test_the_log_of_an_editor_that_sends_nonsense(text: bytes) -> None:
    message = b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
    done = subprocess.run(
        [*STEPSCOPE, "lsp"], input=message * CLIENTS, capture_output=True, timeout=120, check=False
    )
    assert len(done.stderr.splitlines()) < MOST_LINES, done.stderr[-2000:]
