"""How long an answer takes once the graph is built: `python benchmarks/whatif_pane.py FILE…`.

Of each change that applies the median of 5 answers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from stepscope.faces.page.whatif_answers import Pane
from stepscope.facts.load import open as open_trace

RUNS = 5


def milliseconds(pane: Pane, change: str) -> float:
    """Of one answer."""
    begin = perf_counter()
    pane.answer([change])
    return (perf_counter() - begin) * 1e3


def main(files: list[str]) -> None:
    """Print one line for each trace and change."""
    for file in files:
        begin = perf_counter()
        pane = Pane(open_trace(Path(file)))
        applying = [one.name for one in pane.changes if one.applies and not one.reason]
        built = perf_counter() - begin
        tasks = len(pane.graph)
        print(f"{file}: {tasks:,} tasks, opened, built and every change tried in {built:.1f} s")
        for change in applying:
            time = median(milliseconds(pane, change) for _ in range(RUNS))
            print(f"  {change:<24}{time:8.1f} ms {time / tasks * 5e4:8.1f} ms a 50,000 tasks")


if __name__ == "__main__":
    main(sys.argv[1:])
