"""Why predictions of distributed training miss: where each step's time went, point by point.

    python benchmarks/network_causes.py [--folder FOLDER] [--beyond SHARE]

Reads the recordings and runs that `network_accuracy.py` left in the folder. Predicted and measured
steps are split into three parts that add up: CPU time of the thread that trains, its waits for a
core (`/proc/self/task/*/schedstat`), and the time in which it waits for gradients. The last columns
are CPU time and waits for a core of the other threads of a worker, added up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.network_accuracy import outcomes
from benchmarks.networked.points import Point
from benchmarks.networked.predicted import predicted_parts, recording
from benchmarks.networked.runs import Run, Runs

from stepscope.models.verify.comparison import middle_mean


@dataclass(frozen=True)
class Parts:
    """A step of one worker, ms.

    Attributes:
        step: all of it.
        cpu: CPU time of the thread that trains.
        queued: how long that thread could run but had no core.
    """

    step: float
    cpu: float
    queued: float

    @property
    def blocked(self) -> float:
        """How long it waited for gradients, or for another thread."""
        return self.step - self.cpu - self.queued


def measured_parts(runs: Sequence[Run]) -> Parts:
    """The medians of some rounds."""
    names = "steps_ns", "training_cpu_ns", "training_waited_ns"
    return Parts(*(_median_ms([getattr(run, name) for run in runs]) for name in names))


def of_others(runs: Sequence[Run]) -> tuple[float, float]:
    """CPU time, and waits for a core, of the worker's other threads, ms."""
    measured = measured_parts(runs)
    cpu = _median_ms([run.cpu_ns for run in runs])
    queued = _median_ms([run.waited_ns for run in runs])
    return cpu - measured.cpu, queued - measured.queued


def _median_ms(rounds: Sequence[Sequence[int]]) -> float:
    return statistics.median(middle_mean(times) for times in rounds) / 1e6


def row(point: Point, predicted: Parts, measured: Parts, others: tuple[float, float]) -> str:
    """A line of the table: predicted and measured, and the other threads' times."""
    pairs = (
        (predicted.step, measured.step),
        (predicted.cpu, measured.cpu),
        (predicted.queued, measured.queued),
        (predicted.blocked, measured.blocked),
    )
    cells = " | ".join(f"{first:.0f}, {second:.0f}" for first, second in pairs)
    name = f"`{point.way}` | {point.model} | {point.topology.name} | {point.mbit}"
    error = predicted.step / measured.step - 1
    return f"| {name} | {error:+.1%} | {cells} | {others[0]:.0f} | {others[1]:.0f} |"


def table(arguments: argparse.Namespace, runs: Runs) -> None:
    """Print predicted and measured parts of the points beyond."""
    print(
        "| change | model | links | Mbit/s | error | step, ms | CPU of training "
        "| waits for a core | waits for gradients | others' CPU | others' waits |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for one in outcomes(arguments, runs):
        if abs(one.error) >= arguments.beyond:
            point, found = one.point, runs.of(one.point)
            path = recording(arguments.folder, point.model)
            predicted = Parts(*predicted_parts(path, point, found))
            print(row(point, predicted, measured_parts(found), of_others(found)), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/stepscope-network"))
    parser.add_argument("--beyond", type=float, default=0.15, help="smallest error to show")
    arguments = parser.parse_args()
    arguments.models = arguments.topologies = ()
    table(arguments, Runs(arguments.folder / "runs.jsonl"))


if __name__ == "__main__":
    main()
