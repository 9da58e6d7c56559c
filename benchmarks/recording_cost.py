"""How close corrected stage times are to the same stages of unrecorded steps.

    python benchmarks/recording_cost.py [--rounds N] [--steps N] [--models NAME ...] [--out FILE]

Each of ten small scripts (`recorded_scripts/`) times its stages by hand. It runs three times per
round: alone, by `stepscope run`, which records some of its steps, and alone again. The truth of a
stage is the mean of the medians over the steps of the two runs without stepscope; the same stage is
taken from the capture as corrected, and as recorded: medians over the steps. Rounds of all scripts
alternate; the table has medians over the rounds. Its column *alone* is by how much the second run
without stepscope differs from the first: an error below that cannot be seen.

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
WARMUP, AFTER = 10, 400  # steps of 1 ms are timed for half a second after the recording
SETTLED = 50  # steps until caches and the allocator have settled
STAGES = {"forward": ("forward", "loss"), "backward": ("zero_grad", "backward"),
          "optimizer": ("optimizer",)}  # fmt: skip
OF_TIMERS = {"forward": 1, "backward": 2, "optimizer": 3}
MOST_QUEUED = 0.03

Times = dict[str, float]
Round = tuple[Times, Times, Times, float, Times]


def measured(name: str, steps: int, folder: Path) -> Round:
    """Stage times by hand, corrected and as recorded, ms; the share lost to other processes; and
    the differences between the two runs without stepscope."""
    capture, total = folder / f"{name}.stepscope", WARMUP + steps + AFTER
    first = timed_by_hand(name, total, folder)
    timed_by_hand(name, total, folder, "-m", "stepscope", "run", "--overwrite", "--warmup",
                  str(WARMUP), "--steps", str(steps), "-o", str(capture))  # fmt: skip
    second = timed_by_hand(name, total, folder)
    truth = {stage: (first[stage] + second[stage]) / 2 for stage in STAGES}
    between = {stage: second[stage] / first[stage] - 1 for stage in STAGES}
    corrected, recorded = (
        stage_times(stepscope.open(capture, as_recorded=raw, cache=False)) for raw in (False, True)
    )
    facts = stepscope.open(capture, cache=False).metadata.capture["recorded_steps"]
    return truth, corrected, recorded, (facts["queued_ns"] or 0) / facts["elapsed_ns"], between


def timed_by_hand(name: str, steps: int, folder: Path, *launcher: str) -> Times:
    """Run a script; the median of each stage over the settled steps, ms."""
    out = folder / f"{name}.json"
    subprocess.run(
        [sys.executable, *launcher, SCRIPTS / "stages.py", name, str(steps), out],
        check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    settled = json.loads(out.read_text())[SETTLED:]
    return {stage: statistics.median(step[n] for step in settled) for stage, n in OF_TIMERS.items()}


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
    lines = ["| script | rounds | " + " | ".join(f"{stage}, ms | alone | error" for stage in STAGES)
             + " |", "|---|---|" + "---|---|---|" * len(STAGES)]  # fmt: skip
    for name, found in rounds.items():
        quiet = [one for one in found if one[3] <= MOST_QUEUED] or found
        truth, corrected, recorded, _, between = (
            list(column) for column in zip(*quiet, strict=True)
        )
        cells = [f"{name} | {len(quiet)} of {len(found)}"]
        for stage in STAGES:
            time = statistics.median(one[stage] for one in truth)
            before, after = error(recorded, truth, stage), error(corrected, truth, stage)
            noise = statistics.median(abs(one[stage]) for one in between)
            cells += [f"{time:.2f} | {noise:.1%} | {before:+.0%} → {after:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
