"""How long `stepscope view` takes to answer, without a browser: the server's part of `view.py`.

    python benchmarks/answers.py [--slices 1e6] [--drills 60] [--out results.json]

Starts the server on a generated trace as a user does, waits until it is ready, and goes down the
timeline at random: each click asks for a level and for the details of an operation. Times are those
of whole requests over HTTP, on one connection, as a browser sends them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from big_trace import write_trace

_TABLES = {"modules": {}, "kernels": {}, "sources": {}, "search": {"text": "lstm"}}
_START = "from stepscope.faces.terminal import main; main()"


class Server:
    """A running `stepscope view` of one trace, and a connection to it.

    Attributes:
        ready_s: from its start until the trace is ready.
        trace: the trace's id.
    """

    def __init__(self, process: subprocess.Popen[str], begin: float) -> None:
        assert process.stdout
        place = urlsplit(process.stdout.readline().strip())
        self._process, self._token = process, place.query.partition("=")[2]
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)
        self.trace = self._until_ready()
        self.ready_s = time.perf_counter() - begin

    def _until_ready(self) -> str:
        while True:
            (told,) = json.loads(self.get("/api/traces"))["traces"]
            if told["state"] == "failed":
                sys.exit(told["message"])
            if told["state"] == "ready":
                return str(told["id"])
            time.sleep(0.05)

    def get(self, path: str) -> bytes:
        """The body of an answer, as it came over the wire."""
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            sys.exit(f"{path}: {body!r}")
        return body

    def peak_bytes(self) -> int:
        """The most memory that it has taken, 0 where the system does not show."""
        status = Path(f"/proc/{self._process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(one.split()[1]) * 1024 for one in lines if one.startswith("VmHWM")), 0)


@contextmanager
def serving(trace: Path) -> Iterator[Server]:
    """A server of one trace, ended when done."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _START, "view", str(trace), "--no-browser", "--no-cache"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield Server(process, begin)
        finally:
            process.kill()


class Questions:
    """Asks, and notes how long each answer took, ms, and how large it was, bytes, by question."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._times: dict[str, list[float]] = defaultdict(list)
        self._sizes: dict[str, list[int]] = defaultdict(list)

    def ask(self, question: str, **query: str) -> Any:
        """The answer."""
        path = f"/api/traces/{self._server.trace}/{question}?{urlencode(query)}"
        begin = time.perf_counter()
        body = self._server.get(path)
        self._times[question].append((time.perf_counter() - begin) * 1e3)
        self._sizes[question].append(len(body))
        return json.loads(body)

    def go_down(self, drills: int, seed: int = 0) -> None:
        """From the start to where nothing opens, again and again."""
        dice = random.Random(seed)
        start = self.ask("overview")["start"]
        for question, query in _TABLES.items():
            self.ask(question, **query)
        for _ in range(drills):
            path, inner = start, [""]
            while inner:
                told = self.ask("level", path=path)["level"]["operations"]
                self.ask("details", path=path)
                inner = [id for id, yes in zip(told["id"], told["opens"], strict=True) if yes]
                path = f"{path}/{dice.choice(inner)}" if inner else path

    def figures(self) -> dict[str, dict[str, float]]:
        """For each question the count, median, 95th percentile and greatest time and size."""
        return {
            question: {
                "count": len(times),
                "median_ms": statistics.median(times),
                "p95_ms": sorted(times)[round(0.95 * (len(times) - 1))],
                "most_ms": max(times),
                "most_kb": max(self._sizes[question]) / 1e3,
            }
            for question, times in self._times.items()
        }


def measure(slices: int, drills: int) -> dict[str, Any]:
    """The figures of one server."""
    with tempfile.TemporaryDirectory() as folder:
        trace = write_trace(Path(folder) / "big.json", slices)
        with serving(trace) as server:
            questions = Questions(server)
            questions.go_down(drills)
            return {
                "slices": slices,
                "ready_s": server.ready_s,
                "peak_mb": server.peak_bytes() / 1e6,
                "answers": questions.figures(),
            }


def show(figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    ready, peak = figures["ready_s"], figures["peak_mb"]
    print(f"{figures['slices']:,} slices: ready after {ready:.1f} s, {peak:,.0f} MB at most")
    print(f"{'answer':<10}{'count':>7}{'median ms':>12}{'p95 ms':>10}{'most ms':>10}{'most kB':>10}")
    for question, one in figures["answers"].items():
        times = f"{one['median_ms']:>12.1f}{one['p95_ms']:>10.1f}{one['most_ms']:>10.1f}"
        print(f"{question:<10}{one['count']:>7}{times}{one['most_kb']:>10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--drills", type=int, default=60, help="how often to go down")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    args = parser.parse_args()
    figures = measure(args.slices, args.drills)
    show(figures)
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
