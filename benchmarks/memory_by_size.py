"""Memory and CPU time of reading generated traces of growing size.

    python benchmarks/memory_by_size.py [--gigabytes 0.5 1 2 4]

Each is read by a process of its own, without the cache. Its memory is sampled every 20 ms:
anonymous memory must stay, pages of files the kernel takes back when it needs them. Both together
are the process's peak; the peak of anonymous memory alone is what limits the size of a trace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from big_trace import write_trace

READ_ONCE = Path(__file__).with_name("read_once.py")
SLICES_PER_GIGABYTE = 3_515_000
INTERVAL_S = 0.02


def kilobytes(process: int) -> dict[str, int]:
    """The fields of a process's status that are sizes; empty where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): int(size) for name, size, _ in fields}


def measure(file: Path) -> dict[str, float]:
    """One reading: its seconds and peaks in bytes."""
    command = [sys.executable, str(READ_ONCE), "stepscope", str(file)]
    peaks = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0, "VmHWM": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            now = kilobytes(process.pid)
            peaks = {name: max(peak, now.get(name, 0)) for name, peak in peaks.items()}
            time.sleep(INTERVAL_S)
        output = process.stdout.read() if process.stdout else ""
    return {**json.loads(output), **{name: 1024 * peak for name, peak in peaks.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[0.5, 1, 2, 4])
    parser.add_argument("--folder", type=Path, help="for the traces; default: a temporary one")
    sizes = (args := parser.parse_args()).gigabytes
    print("| text | slices | CPU | wall | anonymous | of the text | with files | load |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for gigabytes in sizes:
            file = write_trace(Path(folder) / "big.json", int(gigabytes * SLICES_PER_GIGABYTE))
            size, found = file.stat().st_size, measure(file)
            print(
                f"| {size / 1e6:.0f} MB | {found['rows']:,} | {found['read_cpu_s']:.1f} s "
                f"| {found['read_s']:.1f} s | {found['RssAnon'] / 1e6:.0f} MB "
                f"| {found['RssAnon'] / size:.2f} | {found['VmHWM'] / 1e6:.0f} MB "
                f"| {os.getloadavg()[0]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
