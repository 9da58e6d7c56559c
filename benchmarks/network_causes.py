"""Why predictions of distributed training miss: where each step's time went, point by point.

    python benchmarks/network_causes.py --folder FOLDER --again FOLDER [--beyond SHARE] [--rounds N]

Takes the recordings and the runs of `network_accuracy.py --folder`, measures those points again
whose error there is beyond a share, and splits predicted and measured steps into three parts that
add up: CPU time of the thread that trains, its waits for a core (`/proc/self/task/*/schedstat`),
and the time in which it waits for gradients. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.network_accuracy import Key, measure_keys, outcomes, prefer
from benchmarks.networked.links import can_shape
from benchmarks.networked.points import Point
from benchmarks.networked.predicted import predicted_parts, recording
from benchmarks.networked.runs import Run, Runs

from stepscope.verify.comparison import middle_mean


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
    columns = [(run.steps_ns, run.training_cpu_ns, run.training_waited_ns) for run in runs]
    means = [[middle_mean(column) / 1e6 for column in row] for row in columns]
    return Parts(*(statistics.median(column) for column in zip(*means, strict=True)))


def of_others(runs: Sequence[Run]) -> tuple[float, float]:
    """CPU time, and waits for a core, of the worker's other threads, ms."""
    cpu = [middle_mean(run.cpu_ns) - middle_mean(run.training_cpu_ns) for run in runs]
    queued = [middle_mean(run.waited_ns) - middle_mean(run.training_waited_ns) for run in runs]
    return statistics.median(cpu) / 1e6, statistics.median(queued) / 1e6


def row(point: Point, predicted: Parts, measured: Parts, others: tuple[float, float]) -> str:
    """A line of the table: predicted and measured, and the other threads' times."""
    pairs = (
        (predicted.step, measured.step), (predicted.cpu, measured.cpu),
        (predicted.queued, measured.queued), (predicted.blocked, measured.blocked),
    )  # fmt: skip
    cells = " | ".join(f"{first:.0f}, {second:.0f}" for first, second in pairs)
    name = f"`{point.way}` | {point.model} | {point.topology.name} | {point.mbit}"
    error = predicted.step / measured.step - 1
    return f"| {name} | {error:+.1%} | {cells} | {others[0]:.0f} | {others[1]:.0f} |"


def table(folder: Path, runs: Runs, points: Iterable[Point]) -> None:
    """Print predicted and measured parts of each point."""
    print("| change | model | links | Mbit/s | error | step, ms | CPU of training | waits for a core "
          "| waits for gradients | others' CPU | others' waits |")  # fmt: skip
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for point in points:
        path, found = recording(folder, point.model), runs.of(point)
        predicted = Parts(*predicted_parts(path, point, runs.unchanged(point)))
        print(row(point, predicted, measured_parts(found), of_others(found)), flush=True)


def keys(points: Sequence[Point], rounds: int) -> dict[tuple[str, str], list[Key]]:
    """What is to be measured, by model and topology."""
    result: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for number in range(rounds):
        for point in points:
            place = point.model, point.topology.name
            plain: Key = (*place, 0, "together", number)
            result[place] += [] if plain in result[place] else [plain]
            result[place].append((*place, point.mbit, point.way, number))
    return result


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--again", type=Path, required=True, help="folder of the new runs")
    parser.add_argument("--beyond", type=float, default=0.15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--nice", type=int, default=0, help="of this session, -20 to 19")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    arguments.models = arguments.topologies = ()
    if not (arguments.table or can_shape()):
        raise SystemExit("needs root, ip and tc")
    prefer(arguments.nice)
    arguments.again.mkdir(parents=True, exist_ok=True)
    earlier = outcomes(arguments, Runs(arguments.folder / "runs.jsonl"))
    points = [one.point for one in earlier if abs(one.error) > arguments.beyond]
    runs = Runs(arguments.again / "runs.jsonl")
    if not arguments.table:
        topologies = {point.topology.name: point.topology for point in points}
        for (model, topology), wanted in keys(points, arguments.rounds).items():
            measure_keys(runs, model, topologies[topology], wanted, arguments)
    table(arguments.folder, runs, points)


if __name__ == "__main__":
    main()
