"""CPU time and memory of whole commands on generated traces, a decade of slices apart.

    python benchmarks/scaling.py [--slices 1e5 1e6 1e7] [--command NAME…]

Each command is a process of its own, without the cache. A slope is that of log(CPU time) over
log(slices) between two sizes, after the time on a trace of 1000 slices is subtracted, which does
not grow: 1 is linear. `view` reads the trace and makes what the page asks for first.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

from big_trace import write_trace
from process import Cost, run

LEAST, TIMEOUT_S = 1000, 1200
OPEN = "import sys, stepscope; trace = stepscope.open(sys.argv[1], cache=False)"
VIEW = """
from stepscope.faces.page.trace_view import TraceView
timeline = TraceView(trace).timeline
timeline.level()
timeline.level(timeline.start())
"""
COMMANDS = {
    "open": ("-c", OPEN),
    "report": ("-m", "stepscope", "report", "--no-cache"),
    "analyze": ("-m", "stepscope", "analyze", "--no-cache"),
    "whatif --all": ("-m", "stepscope", "whatif", "--all", "--no-cache"),
    "contexts": ("-m", "stepscope", "contexts", "--no-cache"),
    "view": ("-c", OPEN + VIEW),
}


def cost(command: str, file: Path) -> Cost:
    """One process; it may end with a status that says that findings were found."""
    found = run([sys.executable, *COMMANDS[command], str(file)], TIMEOUT_S)
    if found.status:
        print(f"{command} ended with {found.status}", file=sys.stderr)
    return found


def row(command: str, sizes: list[int], costs: list[Cost], fixed_s: float) -> str:
    """A row of the table: CPU seconds by size, slopes between sizes, memory at the largest."""
    grown = [max(one.cpu_s - fixed_s, 0.01) for one in costs]
    slopes = [
        math.log(grown[at + 1] / grown[at]) / math.log(sizes[at + 1] / sizes[at])
        for at in range(len(sizes) - 1)
    ]
    cells = [f"{one.cpu_s:.2f} s" for one in costs] + [f"{slope:.2f}" for slope in slopes]
    return " | ".join([f"| {command}", *cells, f"{costs[-1].peak_bytes / 1e6:.0f} MB |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--slices", nargs="+", type=lambda text: int(float(text)), default=[100_000, 1_000_000, 10_000_000]
    )
    parser.add_argument("--command", action="append", choices=COMMANDS)
    parser.add_argument("--folder", type=Path, help="for the traces; default: a temporary one")
    args = parser.parse_args()
    sizes = args.slices
    slopes = [f"slope to {size:,}" for size in sizes[1:]]
    names = ["command", *(f"{size:,} slices" for size in sizes), *slopes, "peak memory"]
    print(f"| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        least = write_trace(Path(name) / "least.json", LEAST)
        files = [write_trace(Path(name) / f"{size}.json", size) for size in sizes]
        for command in args.command or COMMANDS:
            fixed_s = cost(command, least).cpu_s
            costs = [cost(command, file) for file in files]
            print(row(command, sizes, costs, fixed_s), flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
