"""How close corrected stage times are to the same stages of unrecorded steps.

    python benchmarks/recording_cost.py [--rounds N] [--steps N] [--models NAME ...] [--out FILE]

Each of ten small scripts (`recorded_scripts/`) times its stages by hand. `stepscope run` records
some of its steps once per round. Then the script goes on: until the recorder has timed unrecorded
steps, for some steps with only what stays for the whole run, and for some after every hook of
stepscope is removed. These last steps are the truth: two processes on one machine may differ by
more than the errors that we look for. Times are medians over steps, and the table has medians over
the rounds:

- *settled*: by how much the second half of the last steps differs from the first: an error below
  that cannot be seen.
- *stays*: what the hooks that stay for the whole run cost.
- *error*: of the capture as recorded, and as corrected.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import stepscope

SCRIPTS = Path(__file__).with_name("recorded_scripts")
WARMUP, AFTER = 10, 400  # steps of 1 ms are timed for half a second after the recording
STAYS, ALONE = 100, 300  # steps with only what stays for the run, and without anything
SETTLED = 50  # steps until caches and the allocator have settled
STAGES = {"forward": ("forward", "loss"), "backward": ("zero_grad", "backward"), "optimizer": ("optimizer",)}
OF_TIMERS = {"forward": 1, "backward": 2, "optimizer": 3}
MOST_QUEUED = 0.03

Times = dict[str, float]


class Round(NamedTuple):
    """One recorded run; times in ms, by stage.

    Attributes:
        truth: by hand, of steps without any hook.
        stays: by hand, of steps with what stays for the whole run.
        between: of the second half of the steps without any hook, less those of the first.
        corrected, recorded: of the capture.
        queued: the share of the recorded steps that other processes took.
    """

    truth: Times
    stays: Times
    between: Times
    corrected: Times
    recorded: Times
    queued: float


def measured(name: str, steps: int, folder: Path) -> Round:
    """Record a script once."""
    capture, out = folder / f"{name}.stepscope", folder / f"{name}.json"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "stepscope",
            "run",
            "--overwrite",
            "--warmup",
            str(WARMUP),
            "--steps",
            str(steps),
            "-o",
            str(capture),
            SCRIPTS / "stages.py",
            name,
            str(WARMUP + steps + AFTER + STAYS),
            str(SETTLED + ALONE),
            out,
        ],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    times = json.loads(out.read_text())
    alone = times["alone"][SETTLED:]
    first, second = by_hand(alone[: ALONE // 2]), by_hand(alone[ALONE // 2 :])
    corrected, recorded = (
        stage_times(stepscope.open(capture, as_recorded=raw, cache=False)) for raw in (False, True)
    )
    facts = stepscope.open(capture, cache=False).metadata.capture["recorded_steps"]
    return Round(
        by_hand(alone),
        by_hand(times["watched"][-STAYS:]),
        {stage: second[stage] - first[stage] for stage in STAGES},
        corrected,
        recorded,
        (facts["queued_ns"] or 0) / facts["elapsed_ns"],
    )


def by_hand(steps: Sequence[Sequence[float]]) -> Times:
    """The median of each stage over steps, ms."""
    return {stage: statistics.median(step[n] for step in steps) for stage, n in OF_TIMERS.items()}


def stage_times(trace: stepscope.Trace) -> Times:
    """Median over the steps of each stage, ms."""
    runs, steps = trace["stages"], trace["steps"]["step"]
    stage = runs.text("stage")
    return {
        name: float(
            np.median([runs["cpu_ns"][(runs["step"] == step) & stage.mask(*names)].sum() for step in steps])
        )
        / 1e6
        for name, names in STAGES.items()
    }


def middle(rounds: Sequence[Round], stage: str, what: Callable[[Round], Times]) -> float:
    """Median over the rounds of times as a share of the truth."""
    return statistics.median(what(found)[stage] / found.truth[stage] for found in rounds)


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
    heads = [f"{stage}, ms | settled | stays | error" for stage in STAGES]
    lines = [
        "| script | rounds | " + " | ".join(heads) + " |",
        "|---|---|" + "---|---|---|---|" * len(STAGES),
    ]
    for name, found in rounds.items():
        quiet = [one for one in found if one.queued <= MOST_QUEUED] or found
        cells = [f"{name} | {len(quiet)} of {len(found)}", *(cell(quiet, stage) for stage in STAGES)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def cell(rounds: Sequence[Round], stage: str) -> str:
    """Four columns of one stage."""
    time = statistics.median(one.truth[stage] for one in rounds)
    noise = statistics.median(abs(one.between[stage]) / one.truth[stage] for one in rounds)
    stays, before, after = (
        middle(rounds, stage, what) - 1
        for what in (lambda one: one.stays, lambda one: one.recorded, lambda one: one.corrected)
    )
    return f"{time:.2f} | {noise:.1%} | {stays:+.1%} | {before:+.0%} → {after:+.1%}"


if __name__ == "__main__":
    main()
