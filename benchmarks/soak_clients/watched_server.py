"""A server in a process of its own, whose memory, descriptors, threads and children are watched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_EXPECTED = ("Press Ctrl-C to stop.", "Invalid HTTP request received.")


@dataclass(frozen=True)
class Sample:
    """A process at one moment; of its children only their number."""

    second: float
    resident_bytes: int
    descriptors: int
    threads: int
    children: int

    def __str__(self) -> str:
        counts = f"{self.descriptors} descriptors, {self.threads} threads, {self.children} children"
        return f"{self.second / 60:5.1f} min  {self.resident_bytes / 1e6:7.1f} MB  {counts}"


@dataclass
class Watched:
    """A running server.

    Attributes:
        process: the server.
        log: its standard error.
        lines: what it printed when it was ready.
        samples: one for each call of `look`.
    """

    process: subprocess.Popen[str]
    log: Path
    lines: list[str]
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def look(self) -> Sample:
        """Take a sample."""
        if self.process.poll() is not None:
            said = self.log.read_text("utf-8", "replace")[-2000:]
            raise SystemExit(f"the server ended with {self.process.returncode}: {said}")
        folder = Path("/proc") / str(self.process.pid)
        known = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
        resident = int(known["VmRSS"].split()[0]) * 1024
        threads, children = int(known["Threads"]), len(self.children())
        second = time.monotonic() - self.began
        self.samples.append(Sample(second, resident, descriptors, threads, children))
        return self.samples[-1]

    def children(self) -> list[int]:
        """Ids of its child processes."""
        tasks = (Path("/proc") / str(self.process.pid) / "task").glob("*/children")
        return [int(one) for task in tasks for one in task.read_text().split()]

    def complaints(self) -> list[str]:
        """What it wrote to standard error, but for how to stop it and requests that are no HTTP."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if line and not line.endswith(_EXPECTED)]


@contextmanager
def running(arguments: Sequence[str], ready_lines: int, folder: Path) -> Iterator[Watched]:
    """`stepscope` with some arguments, until the block ends.

    Args:
        arguments: of the command line.
        ready_lines: how many lines it prints once it listens.
        folder: for its cache and its log.
    """
    log = folder / f"{arguments[0]}.log"
    environment = os.environ | {"STEPSCOPE_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "stepscope", *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout
        lines = [process.stdout.readline().strip() for _ in range(ready_lines)]
        yield Watched(process, log, lines)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
