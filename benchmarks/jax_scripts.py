"""Stages, modules and lines of JAX scripts, against timers set by hand in the same steps.

    python benchmarks/jax_scripts.py [--python PYTHON] [--only NAME ...] [--rounds N]

Each script of `jax_scripts/` is recorded as it is, by `stepscope run`, twice a round: with its step
as one compiled function, and with forward, backward and optimizer as three, each of which it times
by hand (`jax_scripts/training.py`). A step without its data loading is `update`. The first table
has the medians of these timers in ms over the recorded steps, and by how much the stages differ as
recorded. The second table has the medians over steps that nothing records any more, and by how much
the report differs, which has removed the cost of recording; the third has the same for steps of a
run without stepscope. The fourth has shares of the time of
compiled operations of the first kind of run: with a module (of both passes, and of all), with a
line of the user's below which it was traced; and by how many ns the parts of fused operations
differ from them in the calling contexts.

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
from typing import Any, NamedTuple

import numpy as np

from stepscope.facts import load
from stepscope.facts.annotate.jax.frames import frames_of_events, is_users
from stepscope.facts.contexts.event_forest import build_forest
from stepscope.trace.trace import Trace

SCRIPTS = Path(__file__).with_name("jax_scripts")
HAND_TIMERS = Path(__file__).with_name("script_styles")
WARMUP, RECORDED, STEPS = 10, 15, 90
UNRECORDED = 40  # the last steps: the recorder is done by then
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
Differences = dict[str, dict[str, tuple[float, float]]]


class Run(NamedTuple):
    """A run's capture, as reported and as recorded, and the timers of all its steps, ms.

    `plain` has the timers of another run, without stepscope.
    """

    reported: Trace
    as_recorded: Trace
    timers: list[Times]
    plain: list[Times]


def recorded(script: Path, python: str, mode: str, folder: Path) -> Run:
    """Run a script under `stepscope run`, and without it."""
    capture = folder / f"{mode}.stepscope"
    options = ["--warmup", str(WARMUP), "--steps", str(RECORDED), "-o", str(capture)]
    plain = timers([python, str(script), mode], folder)
    own = timers([python, "-m", "stepscope", "run", *options, str(script), mode], folder)
    reported = load.open(capture, cache=False)
    return Run(reported, load.open(capture, cache=False, as_recorded=True), own, plain)


def timers(command: list[str], folder: Path) -> list[Times]:
    """The times that a script measured by hand, ms, of each of its steps."""
    times = folder / "times.json"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "STYLE_STEPS": str(STEPS),
        "STYLE_TIMES": str(times),
        "STYLE_CLOCK": "elapsed",
        "PYTHONPATH": os.pathsep.join([str(HAND_TIMERS), os.environ.get("PYTHONPATH", "")]),
    }
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr.strip().splitlines()[-1]}")
    found: list[Times] = json.loads(times.read_text())
    return found


def differences(run: Run, stages: tuple[str, ...]) -> Differences:
    """By hand and by stepscope, ms: of recorded steps, of unrecorded ones, and without it."""
    steps = run.as_recorded["steps"]["step"]
    same = run.timers[int(steps[0]) : int(steps[-1]) + 1]
    return {
        stage: {
            "recorded": (by_hand(same, stage), stage_ms(run.as_recorded, STAGES[stage])),
            "unrecorded": (by_hand(run.timers[-UNRECORDED:], stage), stage_ms(run.reported, STAGES[stage])),
            "without stepscope": (by_hand(run.plain[WARMUP:], stage), stage_ms(run.reported, STAGES[stage])),
        }
        for stage in stages
    }


def by_hand(timers: list[Times], stage: str) -> float:
    """Median over steps of the timers of a stage, ms."""
    return statistics.median(sum(step[name] for name in TIMERS[stage]) for step in timers)


def stage_ms(trace: Trace, stages: tuple[str, ...]) -> float:
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


def measured(script: Path, python: str) -> tuple[Differences, Times]:
    """One round of a script: how its stages differ, and its shares."""
    with tempfile.TemporaryDirectory() as folder:
        whole = recorded(script, python, "whole", Path(folder))
        apart = recorded(script, python, "stages", Path(folder))
    found = differences(whole, ("update",)) | differences(apart, IN_STAGES)
    return found, shares(whole.reported)


def cell(rounds: list[Differences], stage: str, steps: str) -> str:
    """The timer, and by how much stepscope differs: medians over the rounds."""
    pairs = [found[stage][steps] for found in rounds]
    timer = statistics.median(by_hand for by_hand, _ in pairs)
    return f"{timer:.2f} {statistics.median(ours / by_hand for by_hand, ours in pairs) - 1:+.1%}"


def show_stages(results: dict[str, list[Differences]], steps: str) -> None:
    """The table of the recorded or of the unrecorded steps."""
    columns = ("update", *IN_STAGES)
    print(f"| {steps} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|", sep="\n")
    for name, rounds in results.items():
        print(f"| {name} | " + " | ".join(cell(rounds, stage, steps) for stage in columns) + " |")
    print()


def show_shares(results: dict[str, list[Times]]) -> None:
    """The least share of any round, and the largest difference."""
    print("| script | module, of both passes | module, of all | line | fused, ns |")
    print("|---" * 5 + "|")
    for name, rounds in results.items():
        worst = {key: min(found[key] for found in rounds) for key in rounds[0]}
        worst["fused"] = max(found["fused"] for found in rounds)
        row = "| {} | {of_passes:.1%} | {of_all:.1%} | {line:.1%} | {fused:.0f} |"
        print(row.format(name, **worst))


def main() -> None:
    """Measure, and print four tables in Markdown."""
    known = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "training")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    stages: dict[str, list[Differences]] = {name: [] for name in options.only}
    of_operations: dict[str, list[Times]] = {name: [] for name in options.only}
    for _ in range(options.rounds):
        for name in options.only:
            found, shared = measured(SCRIPTS / f"{name}.py", options.python)
            stages[name].append(found)
            of_operations[name].append(shared)
    show_stages(stages, "recorded")
    show_stages(stages, "unrecorded")
    show_stages(stages, "without stepscope")
    show_shares(of_operations)


if __name__ == "__main__":
    main()
