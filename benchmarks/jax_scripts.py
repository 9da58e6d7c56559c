"""Stages, modules and lines of JAX scripts, against timers set by hand in the same steps.

    python benchmarks/jax_scripts.py [--python PYTHON] [--only NAME ...] [--rounds N]

Each script of `jax_scripts/` is recorded as it is, by `stepscope run`, twice a round: with its step
as one compiled function, and with forward, backward and optimizer as three, each of which it times
by hand (`jax_scripts/training.py`). The first table has the medians of these timers in ms, and by
how much the report's stages differ; a step without its data loading is `update`. The second table
has shares of the time of compiled operations of the first kind of run: with a module (of both
passes, and of all), with a line of the user's below which it was traced; and by how many ns the
parts of fused operations differ from them in the calling contexts.

Python needs flax, equinox, dm-haiku and optax.
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
from stepscope.annotate.names.origin_frames import frames_of_events, is_users
from stepscope.contexts.event_forest import build_forest
from stepscope.trace.trace import Trace

SCRIPTS = Path(__file__).with_name("jax_scripts")
HAND_TIMERS = Path(__file__).with_name("script_styles")
WARMUP, RECORDED, STEPS = 10, 15, 40
STAGES = {
    "data": ("data_loading",),
    "forward": ("forward", "loss"),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "update": ("forward", "loss", "backward", "optimizer", "other"),
}
TIMERS = {stage: (stage,) for stage in STAGES} | {"update": ("update", "other")}
IN_STAGES = ("data", "forward", "backward", "optimizer")
Times = dict[str, float]


def recorded(script: Path, python: str, mode: str, folder: Path) -> tuple[Trace, list[Times]]:
    """The capture of a run, and the timers of all its steps, ms."""
    capture, times = folder / f"{mode}.stepscope", folder / "times.json"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "STYLE_STEPS": str(STEPS),
        "STYLE_TIMES": str(times),
        "STYLE_CLOCK": "elapsed",
        "PYTHONPATH": os.pathsep.join([str(HAND_TIMERS), os.environ.get("PYTHONPATH", "")]),
    }
    command = [python, "-m", "stepscope", "run", "--warmup", str(WARMUP), "--steps", str(RECORDED),
               "-o", str(capture), str(script), mode]  # fmt: skip
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{script.name}: {ended.stderr.strip().splitlines()[-1]}")
    return stepscope.open(capture, cache=False), json.loads(times.read_text())


def differences(trace: Trace, timers: list[Times], stages: tuple[str, ...]) -> dict[str, Times]:
    """By hand and reported, ms: medians over the recorded steps."""
    steps = trace["steps"]["step"]
    same = timers[int(steps[0]) : int(steps[-1]) + 1]
    return {
        stage: {
            "by_hand": statistics.median(
                sum(step[name] for name in TIMERS[stage]) for step in same
            ),
            "reported": reported(trace, STAGES[stage]),
        }
        for stage in stages
    }


def reported(trace: Trace, stages: tuple[str, ...]) -> float:
    """Median over the steps of some stages on the CPU, ms."""
    runs = trace["stages"]
    chosen = runs.text("stage").mask(*stages)
    of_step = (runs["cpu_ns"][chosen & (runs["step"] == step)] for step in trace["steps"]["step"])
    return float(np.median([times.sum() for times in of_step])) / 1e6


def shares(trace: Trace) -> Times:
    """Of the time of compiled operations: with a module, with a line; what fusions miss."""
    events = trace.events
    stage, operators = events.text("stage"), events.text("category").mask("cpu_op")
    compiled = operators & (events["scope"] >= 0) & (events["step"] >= 0)
    time = np.where(compiled, events["self_ns"], 0)
    passes = np.where(stage.mask("forward", "loss", "backward"), time, 0)
    module, line = events["module"] >= 0, lines_of_users(trace)[frames_of_events(trace)]
    return {
        "of_passes": float(passes[module].sum() / passes.sum()),
        "of_all": float(time[module].sum() / time.sum()),
        "line": float(time[line].sum() / time.sum()),
        "fused": fused_difference(trace),
    }


def lines_of_users(trace: Trace) -> Any:
    """Whether each frame is in or below a file of the user's; and last, without a frame, False."""
    frames = trace["frames"]
    result = [*(is_users(file or "") for file in frames.text("file")), False]
    for row, above in enumerate(frames["parent"].tolist()):
        result[row] = result[row] or result[above]
    return np.array(result)


def fused_difference(trace: Trace) -> float:
    """The largest difference of a fused operation from the sum of its parts in the contexts, ns."""
    parts = build_forest(trace).shares
    rows = np.unique(parts.event)
    time = trace.events["self_ns"]
    _, values = parts.spread(rows, time[rows])
    found = np.zeros(len(time), np.int64)
    np.add.at(found, parts.event, values)
    return float(np.abs(found - time)[rows].max(initial=0))


def measured(script: Path, python: str) -> dict[str, Any]:
    """One round of a script."""
    with tempfile.TemporaryDirectory() as folder:
        whole, timers = recorded(script, python, "whole", Path(folder))
        found = differences(whole, timers, ("update",)) | {"shares": shares(whole)}
        apart, timers = recorded(script, python, "stages", Path(folder))
        return found | differences(apart, timers, IN_STAGES)


def cell(rounds: list[dict[str, Any]], stage: str) -> str:
    """The timer, and by how much the report differs: medians over the rounds."""
    by_hand = statistics.median(found[stage]["by_hand"] for found in rounds)
    ratio = statistics.median(
        found[stage]["reported"] / found[stage]["by_hand"] for found in rounds
    )
    return f"{by_hand:.2f} {ratio - 1:+.1%}"


def main() -> None:
    """Measure, and print two tables in Markdown."""
    known = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "training")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
    for _ in range(options.rounds):
        for name, found in results.items():
            found.append(measured(SCRIPTS / f"{name}.py", options.python))
    columns = ("update", *IN_STAGES)
    print("| script | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|", sep="\n")
    for name, found in results.items():
        print(f"| {name} | " + " | ".join(cell(found, stage) for stage in columns) + " |")
    print("\n| script | module, of both passes | module, of all | line | fused, ns |")
    print("|---" * 5 + "|")
    for name, found in results.items():
        least = {key: min(one["shares"][key] for one in found) for key in found[0]["shares"]}
        least["fused"] = max(one["shares"]["fused"] for one in found)
        print(
            "| {} | {of_passes:.1%} | {of_all:.1%} | {line:.1%} | {fused:.0f} |".format(
                name, **least
            )
        )


if __name__ == "__main__":
    main()
