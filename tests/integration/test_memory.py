"""A file of any size needs no more than four times its size in memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 100 << 20
# Not `ru_maxrss`: a child starts with that of the process that made it.
READ = """
import re, sys
from pathlib import Path
from stepscope.read import read
events = len(read(Path(sys.argv[1])).events)
print(events, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def events(size: int, odd_every: int) -> Iterator[bytes]:
    """A trace of about `size` bytes as PyTorch writes it, but for a NaN in one event of a few."""
    yield b'{"schemaVersion": 1, "traceEvents": [\n'
    written, number = 0, 0
    while written < size:
        odd = ', "odd": NaN' if odd_every and number % odd_every == 0 else ""
        event = (
            f'{{"ph": "X", "cat": "cpu_op", "name": "aten::op_{number % 300}", "pid": 4242, '
            f'"tid": {number % 3}, "ts": {1712195490000000 + number * 2}.{number % 1000:03}, '
            f'"dur": {number % 40}.5{odd}, "args": {{"External id": {number}, '
            f'"Sequence number": {number}, "Input Dims": [[8, {number % 512}], [], [{number}]], '
            f'"Input type": ["float", "float", "long int"], "Call stack": "a.py(1): step"}}}},\n'
        ).encode()
        written, number = written + len(event), number + 1
        yield event
    yield b'{"ph": "i", "name": "end", "pid": 4242, "tid": 0, "ts": 1712195490000000}\n]}\n'


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["plain", "gzip", "odd"])
def test_peak_memory_stays_under_four_times_the_size(tmp_path: Path, kind: str) -> None:
    text = b"".join(events(SIZE, odd_every=100_000 if kind == "odd" else 0))
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text, 1) if kind == "gzip" else text)
    read = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    count, peak_kib = map(int, read.stdout.split())
    assert count == text.count(b'"ph": "X"')
    assert peak_kib * 1024 < 4 * len(text)
