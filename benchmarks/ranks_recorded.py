"""Slow ranks of real DDP jobs on CPUs: recorded here with a planted fault, and judged.

    python benchmarks/ranks_recorded.py [--jobs 2] [--processes 2 3] [--out results.json]

Each job is `generated_jobs/gloo_training.py` under torchrun and `stepscope run`. A job is *found*
if the first finding names exactly the slow rank and an allowed stage; *wrong* counts findings that
name another rank. On a machine with fewer cores than processes, ranks disturb each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.models.ranks import job_report, sketch_files
from stepscope.models.ranks.files import files_at

SCRIPT = Path(__file__).parent / "generated_jobs" / "gloo_training.py"
STAGES = {
    "healthy": (),
    "slow_loader": ("data_loading",),
    "python": ("zero_grad", "forward", "other"),
    "uneven_batch": ("forward", "backward", "loss"),
}


def judged(fault: str, processes: int, number: int) -> dict[str, Any]:
    """What is found in one job."""
    slow = number % processes
    with TemporaryDirectory() as folder:
        _record(fault, slow, processes, Path(folder))
        results = sketch_files(files_at(Path(folder, "gloo_training")))
        report = job_report([one.sketch for one in results if one.sketch])
    found = report.stragglers
    first = found[0] if found else None
    named = first is not None and first.ranks == (slow,) and first.stage in STAGES[fault]
    wrong = sum(fault == "healthy" or one.ranks != (slow,) for one in found)
    return {
        "fault": fault,
        "processes": processes,
        "rank": slow,
        "ranks": report.ranks,
        "found": named,
        "wrong": wrong,
        "step_ms": report.step_ms,
        "sentences": [f"{one.sentence} {one.cost_ms:.1f} ms" for one in found],
    }


def _record(fault: str, slow: int, processes: int, folder: Path) -> None:
    scripts = Path(sys.executable).parent
    subprocess.run(
        [
            scripts / "torchrun",
            "--no-python",
            "--nproc-per-node",
            str(processes),
            "--standalone",
            scripts / "stepscope",
            "run",
            SCRIPT,
            fault,
            str(slow),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for fault in STAGES:
        for processes in args.processes:
            for number in range(args.jobs):
                rows.append(judged(fault, processes, number))
                print(json.dumps(rows[-1]), flush=True)
                if args.out:
                    args.out.write_text(json.dumps(rows, indent=1))
    planted = [row for row in rows if row["fault"] != "healthy"]
    print(
        f"found {sum(row['found'] for row in planted)} of {len(planted)}; "
        f"{sum(row['wrong'] > 0 for row in rows)} of {len(rows)} jobs with a wrong finding"
    )


if __name__ == "__main__":
    main()
