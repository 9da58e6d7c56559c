"""The processes of one job on shaped links, which train as they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.networked.links import Links, environment

# A page that is touched first costs microseconds in a virtual machine: freed memory is kept.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
_PORT = 29531


class Job:
    """Workers that wait for requests."""

    def __init__(self, links: Links, model: str) -> None:
        count = links.topology.workers
        self._workers = [
            subprocess.Popen(
                [*links.prefix(rank), sys.executable, Path(__file__).with_name("worker.py"), model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT, **environment(rank, count, _PORT)},
            )
            for rank in range(count)
        ]

    def train(self, way: str, warmup: int, steps: int) -> dict[str, Any]:
        """Train in one way; returns what rank 0 measured."""
        request = json.dumps({"way": way, "warmup": warmup, "steps": steps})
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(request + "\n")
        assert self._workers[0].stdout is not None
        line = self._workers[0].stdout.readline()
        if not line:
            raise SystemExit(f"{way}: a worker has ended; set VERBOSE=1 to see why")
        return json.loads(line)

    def end(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    stream.close()


@contextmanager
def job(links: Links, model: str) -> Iterator[Job]:
    """A job, ended afterwards."""
    running = Job(links, model)
    try:
        yield running
    finally:
        running.end()
