"""`stepscope view` as a process of its own, and `report --html` of a real trace."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

PATIENCE_S = 120
RESNET = "kineto_resnet50_v100/num_workers_0.json.gz"
MODEL = Path(__file__).parents[2] / "examples" / "resnet50.model.json"
PAGE = '<html><head><script type="module" src="./index.js"></script></head><body></body></html>'
SLICES = [
    {"ph": "X", "name": "ProfilerStep#1", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 0, "dur": 9},
    {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5},
]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A stand-in for the built page."""
    folder = tmp_path / "_web"
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "index.js").write_text("document.title = 'stepscope';")
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(SLICES))
    return file


def command(page: Path, *arguments: object) -> list[str]:
    """`stepscope` with another folder of the page."""
    code = (
        "from pathlib import Path; from stepscope.faces.page import bundle; "
        f"bundle.FOLDER = Path({str(page)!r}); from stepscope.faces.terminal import main; main()"
    )
    return [sys.executable, "-c", code, *map(str, arguments)]


class Running:
    """A running server, and who asks it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.base, _, self.token = url.partition("?token=")

    def ask(self, path: str, token: str | None = None) -> Any:
        bearer = {"Authorization": f"Bearer {token or self.token}"}
        request = urllib.request.Request(f"{self.base}{path}", headers=bearer)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.base.rpartition(":")[2].strip("/"))

    def question(self, path: str) -> bytes:
        """A request as it is sent."""
        host = ":".join(map(str, self.address))
        head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.token}"
        return f"{head}\r\n\r\n".encode()

    def refusal(self, path: str, token: str | None = None) -> int:
        """The status of a question that is refused."""
        with pytest.raises(urllib.error.HTTPError) as refusal:
            self.ask(path, token)
        with refusal.value as answer:
            return int(answer.code)

    def ready(self) -> list[dict[str, Any]]:
        """The traces once none is loading any more."""
        while True:
            traces: list[dict[str, Any]] = self.ask("api/traces")["traces"]
            if all(one["state"] != "loading" for one in traces):
                return traces

    def interrupt(self) -> int:
        """The exit code after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextmanager
def viewing(page: Path, *arguments: object, limits: Sequence[str] = ()) -> Iterator[Running]:
    process = subprocess.Popen(
        [*limits, *command(page, "view", "--no-browser", *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", url), process.stderr
        yield Running(process, url)
    finally:
        process.kill()
        process.communicate()


def run(page: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(page, *arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


# -- the server


def test_it_prints_a_url_answers_and_ends_at_ctrl_c(page: Path, trace: Path) -> None:
    with viewing(page, trace) as server:
        (told,) = server.ready()
        assert (told["id"], told["state"]) == ("run", "ready")
        assert server.ask("api/traces/run/overview")["start"] == "s1.0"
        assert server.interrupt() == 0
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()


def test_ctrl_c_says_nothing_of_an_answer_that_was_not_ready(page: Path, trace: Path) -> None:
    endless = "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"
    with viewing(page, trace) as server:
        server.ready()
        asked = socket.create_connection(server.address, PATIENCE_S)
        asked.sendall(server.question(f"api/traces/run/query?sql={quote(endless)}"))
        server.ask("api/traces")  # by then the first question has been taken
        assert server.interrupt() == 0
        asked.close()
        assert server.process.stderr is not None
        assert server.process.stderr.read() == "Press Ctrl-C to stop.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of descriptors are of POSIX")
def test_more_clients_than_descriptors_do_no_harm(page: Path, trace: Path) -> None:
    few = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with viewing(page, trace, limits=few) as server:
        clients = [socket.create_connection(server.address, PATIENCE_S) for _ in range(100)]
        for client in clients:
            client.close()
        assert server.ready()[0]["state"] == "ready"
        assert server.interrupt() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == "Press Ctrl-C to stop.\n"


def test_the_token_in_the_url_opens_the_page(page: Path, trace: Path) -> None:
    from http.cookiejar import CookieJar

    cookies = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    with viewing(page, trace) as server:
        with browser.open(f"{server.base}?token={server.token}") as response:
            assert response.url == server.base
            assert response.read().decode() == PAGE
        with browser.open(f"{server.base}api/traces") as response:
            assert json.load(response)["traces"][0]["id"] == "run"
        assert server.refusal("api/traces", token="wrong") == 401


def test_several_files_are_read_while_the_page_is_there(page: Path, trace: Path) -> None:
    other = trace.with_name("broken.json")
    other.write_text("no trace")
    folder = trace.with_name("ranks")
    folder.mkdir()
    (folder / "rank0.json").write_text(json.dumps(SLICES))
    with viewing(page, trace, other, folder) as server:
        states = {one["id"]: one["state"] for one in server.ready()}
        assert states == {"run": "ready", "broken": "failed", "ranks": "ready"}
        assert server.interrupt() == 0


SLOW_READER = """
import time
from stepscope.read import Reader
READER = Reader("slow", lambda head: head.startswith(b"SLOW"), lambda *given: time.sleep(600))
"""


def test_ctrl_c_ends_it_while_a_file_is_being_read(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader from outside that takes ten minutes stands for a file of gigabytes."""
    (tmp_path / "slow_reader.py").write_text(SLOW_READER)
    about = tmp_path / "slow_reader-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-reader\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[stepscope.readers]\nslow = slow_reader:READER\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.getenv("PYTHONPATH")])])
    )
    (tmp_path / "slow.json").write_text("SLOW")
    with viewing(page, tmp_path / "slow.json") as server:
        assert server.ask("api/traces")["traces"][0]["state"] == "loading"
        assert server.refusal("api/traces/slow/overview") == 409
        assert server.interrupt() == 0


def test_two_of_them_run_beside_each_other(page: Path, trace: Path) -> None:
    with viewing(page, trace) as one, viewing(page, trace) as other:
        assert one.base != other.base
        assert one.ready()[0]["state"] == other.ready()[0]["state"] == "ready"


def test_a_port_that_is_taken_is_told_of(page: Path, trace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(page, "view", trace, "--no-browser", "--port", port)
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_use_gets_one_line(page: Path, tmp_path: Path) -> None:
    result = run(page, "view", tmp_path / "none.json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (f"Error: no such file or folder: {tmp_path / 'none.json'}\n")


def test_a_page_that_is_not_built_says_how_to_build_it(trace: Path, tmp_path: Path) -> None:
    for arguments in (("view", trace), ("report", trace, "--html", tmp_path / "out.html")):
        result = run(tmp_path / "nowhere", *arguments)
        assert result.returncode == 2
        assert "build it with: npm --prefix web ci && npm --prefix web run build" in result.stderr
    assert not list(tmp_path.glob("*out.html*"))


# -- the single file


def told(file: Path) -> dict[str, Any]:
    """The data in a file."""
    (data,) = re.findall(r'id="stepscope-data">([^<]+)<', file.read_text("utf-8"))
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return found


def test_a_step_of_resnet_50_fits_into_five_megabytes_with_every_level(
    page: Path, traces: Path, tmp_path: Path
) -> None:
    out = tmp_path / "resnet.html"
    given = ("report", traces / RESNET, "--model", MODEL, "--html", out, "--whatif", "cuda_graphs")
    result = run(page, *given)
    assert (result.returncode, result.stderr) == (0, "")
    assert out.stat().st_size < 5_000_000 - 500_000  # half a megabyte for the page itself
    found = told(out)
    assert not any("operations of step" in phrase for phrase in found["left_out"])
    assert found["answers"]["whatif?changes=cuda_graphs"]["answer"]["predicted_step_ms"] > 0
    step, details = (found["answers"][f"{name}?path=s5.0"] for name in ("step", "step_details"))
    assert len(step["events"]["event"]) == 7444
    whole = zip(step["levels"]["operations"], step["levels"]["lists"], strict=True)
    places = 1 + sum(operations for operations, lists in whole if lists != 1)
    assert len(details["columns"]["name"]["value"]) == places > 7000


def test_source_text_is_included_only_from_the_folder_given(page: Path, tmp_path: Path) -> None:
    source, trace, model = (tmp_path / name for name in ("train.py", "run.json", "model.json"))
    source.write_text("secret = 1\n")
    root = {**SLICES[1], "name": "stepscope.module:"}
    trace.write_text(json.dumps([*SLICES, root]))
    tree = {"name": "net", "class": "Net", "file": str(source), "line": 1, "children": []}
    model.write_text(json.dumps(tree))
    given = ("report", trace, "--model", model, "--html", out := tmp_path / "out.html")
    result = run(page, *given)
    assert result.stderr == ""
    assert "secret" not in json.dumps(told(out))  # a trace alone chooses no file of this machine
    result = run(page, *given, "--source-root", tmp_path)
    assert result.stderr == f"{out} includes the text of 1 source file:\n  {source}\n"
    assert "secret" in json.dumps(told(out))
    (tmp_path / "other").mkdir()
    run(page, *given, "--source-root", tmp_path / "other")
    assert "secret" not in json.dumps(told(out))


def test_the_file_is_written_whole_or_not_at_all(page: Path, trace: Path, tmp_path: Path) -> None:
    result = run(page, "report", trace, "--html", tmp_path / "none" / "out.html")
    assert result.returncode == 2
    assert "does not exist" in result.stderr
    out = tmp_path / "out.html"
    out.write_text("before")
    result = run(page, "report", trace, "--html", out, "--step", "9")
    assert (result.returncode, out.read_text()) == (2, "before")
    assert "rank 0 has no step 9; it has 1" in result.stderr
    assert run(page, "report", trace, "--html", out).returncode == 0
    assert out.read_text().startswith("<html>")
    assert sorted(tmp_path.glob(".out*")) == []
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~mask
