"""Time and peak memory of `stepscope ranks` against the number of ranks.

    python benchmarks/ranks_scale.py 64 128 [--steps 41] [--keep FOLDER]

Eight different files of a generated job (`generated_jobs`) of about 100,000 events each; the files
of more ranks are hard links to them. Memory is the sum of the resident sets of the whole process
tree (pages that processes share count more than once), sampled ten times a second. `reduce` is the
command again, on the kept sketches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from generated_jobs.files import write_rank
from generated_jobs.job import Job
from generated_jobs.template import template

_DISTINCT = 8


def write_distinct(folder: Path, steps: int) -> list[Path]:
    """Files of eight ranks that do not say which rank they are."""
    folder.mkdir(parents=True, exist_ok=True)
    job = Job("dlrm", template("dlrm", 8), _DISTINCT, steps)
    paths = [folder / f"source{rank}.json" for rank in range(_DISTINCT)]
    for rank, path in enumerate(paths):
        if not path.exists():
            write_rank(job, rank, path, named=False)
    return paths


def linked(sources: list[Path], folder: Path, ranks: int) -> Path:
    """A folder of `ranks` files, hard links to the sources."""
    for rank in range(ranks):
        node = folder / f"node-{rank // _DISTINCT}"
        node.mkdir(parents=True, exist_ok=True)
        os.link(sources[rank % _DISTINCT], node / f"rank{rank}.json")
    return folder


def measured(command: list[str]) -> tuple[float, float, int]:
    """Wall time, s, CPU time, s, and peak memory of the process tree, bytes, of a command."""
    begin, before, peak = time.perf_counter(), os.times(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, _tree_bytes(process.pid))
            time.sleep(0.1)
        if process.returncode:
            sys.exit(f"{command} ended with {process.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, cpu, peak


def _tree_bytes(root: int) -> int:
    """The resident sets of a process and all below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    tree = {root}
    while below := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= below
    return sum(map(_resident, tree))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=41)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        base = args.keep or Path(temporary)
        sources = write_distinct(base / "sources", args.steps)
        events = sum(len(json.loads(p.read_text())["traceEvents"]) for p in sources) // _DISTINCT
        size = sources[0].stat().st_size / 1e6
        print(f"{events} events, {size:.1f} MB a rank; load {os.getloadavg()[0]:.1f}", flush=True)
        print("ranks   wall s   CPU s   CPU s/rank   peak MB   reduce s   reduce MB", flush=True)
        for ranks in args.ranks:
            with TemporaryDirectory(dir=base) as folder:
                job = linked(sources, Path(folder, "job"), ranks)
                command = [
                    sys.executable,
                    "-m",
                    "stepscope",
                    "ranks",
                    str(job),
                    "--json",
                    "-o",
                    str(Path(folder, "dataset")),
                ]
                wall, cpu, peak = measured(command)
                again, _, later = measured(command)
                print(
                    f"{ranks:5} {wall:8.1f} {cpu:7.1f} {cpu / ranks:12.2f} {peak / 1e6:9.0f} "
                    f"{again:10.1f} {later / 1e6:11.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
