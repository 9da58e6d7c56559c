"""How close corrected stage times are to the same stages of unrecorded steps.

    python benchmarks/recording_cost.py [--rounds N] [--steps N] [--models NAME ...] [--out FILE]

Each of ten small scripts (`recorded_scripts/`) times its stages by hand. `stepscope run` records
some of its steps and leaves the others alone. The truth of a stage is the median over the steps
that were not recorded; the same stage is taken from the capture as corrected, and as recorded:
medians over the steps. Rounds of all scripts alternate; the table has medians over the rounds.

The hand-set timers read the CPU time of the thread, so that other processes on the machine do not
count; the scripts wait for nothing, so that is their elapsed time on an idle machine. The capture
has elapsed times: rounds in which other processes took more than 3 % of the recorded steps are
left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import stepscope

SCRIPTS = Path(__file__).with_name("recorded_scripts")
WARMUP, AFTER, TIMED = 10, 60, 35  # the recorder leaves the process 22 steps after recording
STAGES = {"forward": ("forward", "loss"), "backward": ("zero_grad", "backward"),
          "optimizer": ("optimizer",)}  # fmt: skip
OF_TIMERS = {"forward": 1, "backward": 2, "optimizer": 3}
MOST_QUEUED = 0.03

Times = dict[str, float]
Round = tuple[Times, Times, Times, float]


def measured(name: str, steps: int, folder: Path) -> Round:
    """Stage times by hand, corrected and as recorded, ms; and the share lost to other processes."""
    capture, out = folder / f"{name}.stepscope", folder / f"{name}.json"
    total = WARMUP + steps + AFTER
    subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "--overwrite", "--warmup", str(WARMUP),
         "--steps",
         str(steps), "-o", capture, SCRIPTS / "stages.py", name, str(total), out],
        check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    unrecorded = json.loads(out.read_text())[-TIMED:]
    truth = {
        stage: statistics.median(step[n] for step in unrecorded) for stage, n in OF_TIMERS.items()
    }
    corrected, recorded = (
        stage_times(stepscope.open(capture, as_recorded=raw, cache=False)) for raw in (False, True)
    )
    facts = stepscope.open(capture, cache=False).metadata.capture["recorded_steps"]
    return truth, corrected, recorded, (facts["queued_ns"] or 0) / facts["elapsed_ns"]


def stage_times(trace: stepscope.Trace) -> Times:
    """Median over the steps of each stage, ms."""
    runs, steps = trace["stages"], trace["steps"]["step"]
    stage = runs.text("stage")
    return {
        name: float(np.median([
            runs["cpu_ns"][(runs["step"] == step) & stage.mask(*names)].sum() for step in steps
        ])) / 1e6
        for name, names in STAGES.items()
    }  # fmt: skip


def error(found: Sequence[Times], truth: Sequence[Times], stage: str) -> float:
    """Median over the rounds of the relative difference."""
    return statistics.median(a[stage] / b[stage] - 1 for a, b in zip(found, truth, strict=True))


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out")
    sys.path.insert(0, str(SCRIPTS))
    from models import MODELS

    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    rounds: dict[str, list[Round]] = {name: [] for name in options.models}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name in options.models:
                rounds[name].append(measured(name, options.steps, Path(folder)))
    if options.out:
        Path(options.out).write_text(json.dumps(rounds))
    print(*table(rounds), sep="\n")


def table(rounds: dict[str, list[Round]]) -> list[str]:
    """Lines of Markdown: by hand, then the error as recorded and as corrected, by stage."""
    lines = ["| script | rounds | " + " | ".join(f"{stage}, ms | error" for stage in STAGES) + " |",
             "|---|---|" + "---|---|" * len(STAGES)]  # fmt: skip
    for name, found in rounds.items():
        quiet = [one for one in found if one[3] <= MOST_QUEUED] or found
        truth, corrected, recorded, _ = (list(column) for column in zip(*quiet, strict=True))
        cells = [f"{name} | {len(quiet)} of {len(found)}"]
        for stage in STAGES:
            time = statistics.median(one[stage] for one in truth)
            before, after = error(recorded, truth, stage), error(corrected, truth, stage)
            cells += [f"{time:.2f} | {before:+.0%} → {after:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
