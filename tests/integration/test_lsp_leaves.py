"""The language server on its streams, from the first message to the last."""

from __future__ import annotations

import json
import subprocess
import sys
import time


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
