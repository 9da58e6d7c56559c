"""Distributed changes predicted from one process, and measured on shaped links.

    python benchmarks/network_accuracy.py [--folder FOLDER] [--rounds N] [--nice N] [--table]

GPT-2, ResNet-50 and an LSTM like GNMT train in network namespaces: two workers and four workers at
a switch, and two nodes of two workers with a slow link between, at several bandwidths each. The
gradients are averaged by DistributedDataParallel, P3, DGC and BlueConnect (the reference
implementations in `benchmarks/networked`), in turn within each round. Each point is predicted from
a recording of plain training in a single process, and the speed of the machine at that time: before
and after each run all workers train at once without communication. Needs root, `ip` and `tc`
(apt-get install iproute2). Results are lines of JSON in the folder; interrupted, the same command
goes on.
"""

import argparse
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.networked.job import job
from benchmarks.networked.links import TOPOLOGIES, Topology, can_shape, links
from benchmarks.networked.models import MODELS
from benchmarks.networked.points import BANDWIDTHS, WAYS, WITHIN_MBIT, Point, points
from benchmarks.networked.predicted import prediction, recording
from benchmarks.networked.runs import Runs, measured, median_ms, spread

Key = tuple[str, str, int, str, int]


def keys(model: str, topology: Topology, rounds: int) -> list[Key]:
    """What is to be measured of a model on a topology, in order."""
    result: list[Key] = []
    for number in range(rounds):
        for mbit in BANDWIDTHS[topology.name]:
            ways = WAYS[topology.name]
            # The order alternates, so that drift affects all alike.
            ordered = ways if number % 2 == 0 else ways[::-1]
            result += [(model, topology.name, mbit, way, number) for way in ordered]
    return result


def measure(runs: Runs, model: str, topology: Topology, arguments: argparse.Namespace) -> None:
    """Measure what is missing."""
    wanted = [key for key in keys(model, topology, arguments.rounds) if not runs.has(key)]
    if not wanted:
        return
    with links(topology) as made, job(made, model) as running:
        for key in wanted:
            made.shape(key[2], WITHIN_MBIT)
            run = measured(running, key, arguments.warmup, arguments.steps)
            runs.add(run)
            print(*key, f"{run.step_ms:.1f} ms, load {run.load}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Outcome:
    """A point, predicted and measured, ms."""

    point: Point
    before: float
    predicted: float
    measured: float
    spread: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.measured - 1


def outcomes(arguments: argparse.Namespace, runs: Runs) -> Iterator[Outcome]:
    """The points that were measured."""
    for point in points(arguments.models, arguments.topologies):
        found = runs.of(point)
        if found:
            path = recording(arguments.folder, point.model)
            told = prediction(path, point, found)
            before, after = told.replayed_step_ms, told.predicted_step_ms
            yield Outcome(point, before, after, median_ms(found), spread(found))


def row(one: Outcome, ddp: Outcome | None) -> str:
    """A line of the table; gains are over DistributedDataParallel, if it was measured."""
    point, gains = one.point, "– | –"
    if ddp is not None and point.way != "ddp":
        gains = f"{ddp.predicted / one.predicted:.2f}x | {ddp.measured / one.measured:.2f}x"
    return (
        f"| `{point.way}` | {point.model} | {point.topology.name} | {point.mbit} "
        f"| {one.before:.0f} | {one.predicted:.0f} | {one.measured:.0f} | {one.error:+.1%} "
        f"| {one.spread:.0%} | {gains} |"
    )


def table(arguments: argparse.Namespace, runs: Runs) -> None:
    """Print the points, and the errors of each change."""
    print(
        "| change | model | links | Mbit/s | alone, ms | predicted | measured | error | spread "
        "| gain predicted | measured |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    errors: dict[str, list[float]] = defaultdict(list)
    ddp: dict[tuple[str, str, int], Outcome] = {}
    for one in outcomes(arguments, runs):
        place = one.point.model, one.point.topology.name, one.point.mbit
        if one.point.way == "ddp":
            ddp[place] = one
        print(row(one, ddp.get(place)), flush=True)
        for name in (one.point.way, "all"):
            errors[name].append(one.error)
    print("\n| change | points | mean error | mean of the signed | worst |\n|---|---:|---:|---:|---:|")
    for way, values in errors.items():
        sizes = [abs(value) for value in values]
        print(
            f"| `{way}` | {len(values)} | {statistics.fmean(sizes):.1%} "
            f"| {statistics.fmean(values):+.1%} | {max(sizes):.1%} |"
        )
    loads = [run.load for run in runs]
    print(f"\n{len(loads)} runs, load {min(loads)} to {max(loads)}, median {statistics.median(loads)}")


def prefer(nice: int) -> None:
    """Run before other sessions' processes, where the system groups processes by session.

    A process's own priority only counts within its session then. Source: sched(7), "The autogroup
    feature".
    """
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/stepscope-network"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=())
    names = [one.name for one in TOPOLOGIES]
    parser.add_argument("--topologies", nargs="+", choices=names, default=())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--nice", type=int, default=0, help="of this session, -20 to 19")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if not (arguments.table or can_shape()):
        raise SystemExit("needs root, ip and tc")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces are to be removed
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prefer(arguments.nice)
    runs = Runs(arguments.folder / "runs.jsonl")
    if not arguments.table:
        for topology in TOPOLOGIES:
            for model in arguments.models or MODELS:
                recording(arguments.folder, model)
                if not arguments.topologies or topology.name in arguments.topologies:
                    measure(runs, model, topology, arguments)
    table(arguments, runs)


if __name__ == "__main__":
    main()
