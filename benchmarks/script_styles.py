"""Stages of scripts in many styles, against timers set by hand in unrecorded steps.

    python benchmarks/script_styles.py [--python PYTHON] [--only NAME ...] [--rounds N]
        [--last] [--out FILE]

Each script of `script_styles/` is recorded as it is, by `stepscope run`, once a round. It times its
stages by hand (`hand_timers.py`); the truth of a stage is the median over steps that were not
recorded, of the same process: all but the first after the recording, as stepscope times unrecorded
steps among them and a core's speed varies for seconds; with `--last` the last ones, in which
nothing of stepscope is left. The table has each of them in ms, and the difference of the same stage
of the corrected report: medians over the rounds. A script that fails, since its libraries are
missing, is named and left out.

The timers measure CPU time, a capture elapsed time: use a machine with nothing else to do, or a
real-time priority (`chrt -r 1 python benchmarks/script_styles.py`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import stepscope

SCRIPTS = Path(__file__).with_name("script_styles")
WARMUP, RECORDED, AFTER, LAST = 10, 15, 270, 35  # short steps are timed for up to 250 steps
STEPS = WARMUP + RECORDED + AFTER + LAST
SETTLED = 10  # steps after the recording
STAGES = {
    "data": ("data_loading",),
    "forward": ("transfer", "forward", "loss", "prefill", "decode"),
    "backward": ("zero_grad", "backward"),
    "optimizer": ("optimizer",),
    "evaluation": ("evaluation",),
    "other": ("other", "checkpointing"),
}
NOTABLE = 0.1  # of the step
Times = dict[str, float]


def measured(script: Path, python: str, folder: Path, timed: int) -> dict[str, Any]:
    """Times by hand of the last steps and from the capture, ms, with what else that says."""
    capture, times = folder / "run.stepscope", folder / "times.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STYLE_STEPS": str(STEPS), "STYLE_TIMES": str(times)}
    command = [
        python,
        "-m",
        "stepscope",
        "run",
        "--overwrite",
        "--warmup",
        str(WARMUP),
        "--steps",
        str(RECORDED),
        "-o",
        str(capture),
        str(script),
    ]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    if ended.returncode:
        return {"failed": ended.stderr.strip().splitlines()[-1]}
    steps = json.loads(times.read_text())[-timed:]
    by_hand = {stage: statistics.median(step.get(stage, 0.0) for step in steps) for stage in STAGES}
    by_hand["step"] = statistics.median(sum(step.values()) for step in steps)
    trace = stepscope.open(capture, cache=False)
    facts = trace.metadata.capture.get("recorded_steps") or {}
    queued = (facts.get("queued_ns") or 0) / facts["elapsed_ns"] if facts else None
    cost = dict(trace.metadata.recording_cost)
    return {"by_hand": by_hand, "reported": reported(trace), "queued": queued, "cost": cost}


def reported(trace: stepscope.Trace) -> Times:
    """Median over the steps of each stage on the CPU, ms."""
    runs, steps = trace["stages"], trace["steps"]
    stage = runs.text("stage")
    found = {
        name: float(
            np.median(
                [runs["cpu_ns"][(runs["step"] == step) & stage.mask(*names)].sum() for step in steps["step"]]
            )
        )
        / 1e6
        for name, names in STAGES.items()
    }
    return {**found, "step": float(np.median(steps["end_ns"] - steps["start_ns"])) / 1e6}


def row(name: str, rounds: list[dict[str, Any]]) -> str:
    """A line of the table: each stage by hand, and by how much the report differs; medians."""
    if failed := [found["failed"] for found in rounds if "failed" in found]:
        return f"| {name} | left out: {failed[0][:80]} |" + " |" * len(STAGES)
    cells = (cell(rounds, stage) for stage in ("step", *STAGES))
    return f"| {name} | " + " | ".join(cells) + " |"


def cell(rounds: list[dict[str, Any]], stage: str) -> str:
    """By hand, and the difference: in percent where the stage takes a tenth of the step or more."""
    pairs = [(found["by_hand"][stage], found["reported"][stage]) for found in rounds]
    truth, said = (statistics.median(times) for times in zip(*pairs, strict=True))
    if truth < NOTABLE * statistics.median(found["by_hand"]["step"] for found in rounds):
        return f"{truth:.2f} → {said:.2f}" if max(truth, said) >= 0.005 else "–"
    return f"{truth:.2f} {statistics.median(after / before - 1 for before, after in pairs):+.0%}"


def main() -> None:
    """Measure and print a table in Markdown."""
    known = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "hand_timers")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--last", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    timed = LAST if options.last else AFTER + LAST - SETTLED
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
    for _ in range(options.rounds):
        for name, found in results.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(SCRIPTS / f"{name}.py", options.python, Path(folder), timed))
    heads = ["script", "step, ms", *STAGES]
    print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n")
    print(*(row(name, found) for name, found in results.items()), sep="\n")
    if options.out:
        Path(options.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
