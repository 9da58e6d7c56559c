"""`stepscope ranks` compared with HTA on the shared 8-rank job: time and memory of whole processes.

    python benchmarks/ranks_hta.py --hta-python PYTHON [--rounds 3] [--folder JOB]

HTA loads the folder and answers what `ranks` answers as well: time use and idle time of each rank,
overlap of communication and computing, and possible stragglers. The two take turns. Memory is the
largest sum of the resident sets of the process tree, as both read files in several processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from ranks_scale import measured

TRACES = Path(os.environ.get("STEPSCOPE_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    job = TraceAnalysis(trace_dir=sys.argv[1])
    job.get_temporal_breakdown(visualize=False)
    job.get_idle_time_breakdown(visualize=False, ranks=list(range(8)))
    job.get_comm_comp_overlap(visualize=False)
    print(job.get_potential_stragglers())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hta-python", required=True, help="an interpreter with HTA 0.5.0")
    parser.add_argument("--folder", type=Path, default=TRACES / "dlrm_8rank_v100")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tools = {
        "stepscope": [sys.executable, "-m", "stepscope", "ranks", str(args.folder), "--json"],
        "HTA": [args.hta_python, "-c", _HTA, str(args.folder)],
    }
    costs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in tools}
    for _ in range(args.rounds):
        for name, command in tools.items():
            costs[name].append(measured(command))
    print(f"load {os.getloadavg()[0]:.1f}; medians of {args.rounds}\n")
    print("| tool | wall, s | CPU, s | peak memory, MB |\n|---|---|---|---|")
    for name, rows in costs.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {peak / 1e6:.0f} |")
    pairs = list(zip(costs["HTA"], costs["stepscope"], strict=True))
    ratios = [statistics.median(a[row] / b[row] for a, b in pairs) for row in range(3)]
    print("| HTA / stepscope | " + " | ".join(f"{ratio:.1f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
