"""Reading a large memory snapshot, against `pickle.load` alone, and until the page's first answers.

    python benchmarks/memory_snapshot.py [--events 5000000] [--rounds 3] [--out results.json]

Each reading is a process of its own, the readers in turn. `pickle.load` makes Python objects and no
table, and would run whatever a file says. `first paint` is what the server computes before the
page's memory pane can be drawn, after the file is read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from big_snapshot import write_snapshot
from process import run

_PICKLE = """
import json, pickle, sys, time
begin = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    found = pickle.load(file)
print(json.dumps({"read_s": time.perf_counter() - begin, "events": len(found["device_traces"][0])}))
"""
_STEPSCOPE = """
import json, sys, time
from pathlib import Path
from stepscope.read import read
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView
begin = time.perf_counter()
trace = read(Path(sys.argv[1]))
done = time.perf_counter()
view = TraceView(trace)
for name in ("overview", "memory", "memory_tile"):
    answer(view, name, Query({}))
print(json.dumps({"read_s": done - begin, "first_paint_s": time.perf_counter() - done,
                  "events": len(trace["memory_events"])}))
"""
READERS = {"pickle.load": _PICKLE, "stepscope": _STEPSCOPE}
TIMEOUT_S = 900


def read(code: str, file: Path) -> dict[str, Any]:
    """One process that reads the file."""
    cost = run([sys.executable, "-c", code, str(file)], TIMEOUT_S)
    facts: dict[str, Any] = json.loads(cost.output.splitlines()[-1])
    return facts | {"cpu_s": cost.cpu_s, "peak_bytes": cost.peak_bytes}


def measure(file: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The readings of each reader, which take turns at being first."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in READERS}
    for number in range(rounds):
        names = list(READERS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(read(READERS[name], file))
    return found


def report(found: dict[str, list[dict[str, Any]]], size: int) -> None:
    """Medians of each reader, and of the ratios within a round."""
    print(f"{size / 1e6:,.0f} MB, {found['stepscope'][0]['events']:,} events")
    for name, readings in found.items():
        for key in ("read_s", "cpu_s", "first_paint_s"):
            if key in readings[0]:
                value = statistics.median(one[key] for one in readings)
                print(f"{name}: {key} {value:.1f}")
        print(f"{name}: peak memory {max(one['peak_bytes'] for one in readings) / 1e9:.2f} GB")
    pairs = zip(found["stepscope"], found["pickle.load"], strict=True)
    ratios = [ours["read_s"] / plain["read_s"] for ours, plain in pairs]
    print(f"stepscope takes {statistics.median(ratios):.2f} times as long as pickle.load alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        write_snapshot(file, options.events)
        found = measure(file, options.rounds)
        report(found, file.stat().st_size)
    if options.out:
        options.out.write_text(json.dumps({"load": os.getloadavg(), "readings": found}, indent=1))


if __name__ == "__main__":
    main()
