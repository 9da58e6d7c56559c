"""The language server on its streams, from the first message to the last."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest


def message(method: str, number: int | None = None, params: object = None) -> bytes:
    told = {"jsonrpc": "2.0", "method": method, "params": params}
    body = json.dumps(told if number is None else told | {"id": number}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def serve(*messages: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "stepscope", "lsp"]
    return subprocess.run(command, input=b"".join(messages), capture_output=True, timeout=300)


HELLO = message("initialize", 1, {"capabilities": {}})


def test_it_leaves_in_silence_when_told_to():
    done = serve(HELLO, message("shutdown", 2), message("exit"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"Content-Length") == 2


def test_it_leaves_when_its_editor_is_gone():
    done = serve(HELLO)
    assert (done.returncode, done.stderr) == (0, b"")


LONG = message("no/such", 9)
WRONG = {  # and the refusals that it brings
    "negative": (b"Content-Length: -5\r\n\r\n", 1),
    "no number": (b"Content-Length: many\r\n\r\n", 1),
    "zero": (b"Content-Length: 0\r\n\r\n", 1),
    "a gigabyte": (b"Content-Length: 1000000000\r\n\r\n", 1),
    "more than an index": (b"Content-Length: %d\r\n\r\n" % 10**20, 1),
    "5,000 digits": (b"Content-Length: %b\r\n\r\n" % (b"9" * 5000), 1),
    "too short": (b"Content-Length: 5" + LONG[LONG.index(b"\r") :], 1),
    "none": (LONG[LONG.index(b"\r\n") + 4 :], 0),
    "lower case": (b"content-length:" + LONG.partition(b":")[2], 1),
    "line feeds": (LONG.replace(b"\r\n", b"\n"), 1),
    "two": (b"Content-Length: 5\r\n" + LONG, 1),
    "an endless line": (b"x" * 1_000_000, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_length_ends_nothing(name):
    """What follows is read, and the server ends as it is told to."""
    sent, refusals = WRONG[name]
    done = serve(HELLO, sent, message("shutdown", 2), message("exit"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"Content-Length") == 2 + refusals
    assert b'"id": 2' in done.stdout


HANGS = """\
import time
from pathlib import Path

BATCH_SIZE = 8
while True:
    Path("hangs").touch()
    time.sleep(0.01)
"""


def test_what_it_measures_ends_with_it(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(HANGS)
    # In place, as this test sees by a file that the script runs; a day, so that no limit ends it.
    options = {"timeLimit": 86_400, "runScripts": "always", "inPlace": True}
    a_day = {"capabilities": {}, "initializationOptions": options}
    command = [sys.executable, "-m", "stepscope", "lsp"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    server.stdin.write(message("initialize", 1, a_day))
    server.stdin.write(message("stepscope/measure", 2, {"uri": entry.as_uri()}))
    server.stdin.flush()
    deadline = time.monotonic() + 300
    while not (tmp_path / "hangs").exists():
        assert server.poll() is None
        assert time.monotonic() < deadline, "the script was never run"
        time.sleep(0.01)
    server.stdin.close()
    assert server.wait(300) == 0
    (tmp_path / "hangs").unlink()
    time.sleep(0.1)
    assert not (tmp_path / "hangs").exists()
