"""SKYLINE's experiment on batch sizes: predictions from three starts against measurements.

From each of three starting batch sizes, models of run time and memory are made as `stepscope batch`
makes them. They predict six other batch sizes (but for those that a sweep chose by itself), which
are also measured: five times three steps, each time in a separate process, the median. Next to it,
memory estimated on fake tensors against the real run; not for JAX, where XLA assigns memory.

    python benchmarks/batch_accuracy.py --model resnet50 --out resnet50.json   # minutes: keep quiet
    python benchmarks/batch_accuracy.py --table resnet50.json transformer.json gnmt.json

Source: Yu et al., Skyline (UIST 2020), "Evaluation of Prediction Accuracy".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepscope.models.batch_size.entry import Entry, open_entry
from stepscope.models.batch_size.entry_profile import Profile, make_profile
from stepscope.models.batch_size.measurement import MeasuredBatch
from stepscope.models.batch_size.sweep import Plan, sweep
from stepscope.models.batch_size.worker_process import Worker
from stepscope.record.batch_size.request import Effort

Json = dict[str, Any]
PACKAGES = {"pytorch": "torch", "jax": "jax"}
_HERE = Path(__file__).parent
_TIMES, _STEPS = 5, 3  # as in the paper: five times three steps


@dataclass(frozen=True)
class Experiment:
    """Batch sizes to start from, and others to predict."""

    starts: tuple[int, ...]
    others: tuple[int, ...]


EXPERIMENTS = {
    "resnet50": Experiment((8, 16, 32), (10, 14, 20, 28, 36, 44)),
    "transformer": Experiment((16, 32, 40), (20, 28, 36, 44, 52, 72)),
    "gnmt": Experiment((16, 32, 40), (20, 28, 36, 44, 52, 72)),
    "jax_transformer": Experiment((16, 32, 40), (20, 28, 36, 44, 52, 72)),
    "jax_cnn": Experiment((16, 32, 40), (20, 28, 36, 44, 52, 72)),
}
QUICK = Experiment((2,), (8,))


def main() -> None:
    """Measure one model, or print the table of several results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true", help="few steps at tiny batch sizes")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--table", nargs="+", type=Path, metavar="JSON")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table([json.loads(path.read_text()) for path in args.table])))
        return
    if args.model is None:
        parser.error("give --model or --table")
    result = run(args.model, QUICK if args.quick else EXPERIMENTS[args.model], args.quick)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))
    print("\n".join(table([result])))


def run(model: str, experiment: Experiment, quick: bool = False) -> Json:
    """All of one model's measurements.

    On one thread, unless OMP_NUM_THREADS says otherwise: several wait for each other at every
    operator, so that whatever else runs on a core delays them all.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    entry = open_entry(_HERE / "batch_entries" / f"{model}.py")
    load = os.getloadavg()[0]
    with closing(Worker(preload=entry.preload)) as worker:
        truth = {batch: _truth(worker, entry, batch, quick) for batch in experiment.others}
        starts = {start: _start(worker, entry, start, quick) for start in experiment.starts}
        facts = next(iter(truth.values())).facts
        can_estimate = facts["framework"] == "pytorch"
        estimated = experiment.others if can_estimate else ()
        estimates = {batch: _estimate(worker, entry, batch) for batch in estimated}
    return {
        "model": model,
        "machine": _machine(),
        "framework": f"{facts['framework']} {version(PACKAGES[facts['framework']])}",
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "load_before": load,
        "starts": [{"start": start} | _compared(one, truth) for start, one in starts.items()],
        "truth": {batch: {"ms": one.ms, "bytes": one.bytes} for batch, one in truth.items()},
        "estimates": estimates,
    }


def _start(worker: Worker, entry: Entry, start: int, quick: bool) -> Profile:
    """What the tool makes of a sweep from one start."""
    effort = Effort(warmup=1, memory=1, least=1, seconds=0) if quick else Effort(memory=1)

    def measure(batch: int) -> MeasuredBatch:
        _say(f"start {start}: batch size {batch}")
        return _measure(worker, entry, batch, effort)

    plan = Plan(extra=0, rounds=1) if quick else Plan()
    return make_profile(sweep(measure, start, plan).points())


def _truth(worker: Worker, entry: Entry, batch: int, quick: bool) -> MeasuredBatch:
    """Five times three steps; the mean of each three, of which the median counts."""
    _say(f"truth: batch size {batch}")
    effort = Effort(memory=1, least=_STEPS, most=_STEPS, seconds=0)
    times = [_measure(worker, entry, batch, effort) for _ in range(1 if quick else _TIMES)]
    return replace(times[0], steps_ms=tuple(statistics.mean(one.steps_ms) for one in times))


def _measure(worker: Worker, entry: Entry, batch: int, effort: Effort) -> MeasuredBatch:
    facts = worker.run(entry.request(batch, effort=effort)).facts
    if facts["outcome"] != "measured":
        sys.exit(f"batch size {batch}: {facts}")
    return MeasuredBatch(batch, tuple(facts["steps_ms"]), facts["bytes"], facts)


def _estimate(worker: Worker, entry: Entry, batch: int) -> int:
    facts = worker.run(entry.request(batch, estimate=True)).facts
    if facts["outcome"] != "estimated":
        sys.exit(f"batch size {batch}: {facts}")
    return int(facts["bytes"])


def _compared(profile: Profile, truth: dict[int, MeasuredBatch]) -> Json:
    own = {point.batch for point in profile.points}
    predicted = {batch: profile.predict(batch) for batch in truth if batch not in own}
    return {
        "points": [point.to_json() for point in profile.points],
        "run_time": profile.to_json()["run_time"],
        "memory": profile.to_json()["memory"],
        "errors": {
            batch: {
                "throughput": abs(one["throughput"] * truth[batch].ms / (1e3 * batch) - 1),
                "memory": abs(one["bytes"] / truth[batch].bytes - 1),
            }
            for batch, one in predicted.items()
        },
    }


# -- the table


def table(results: Iterable[Json]) -> Iterator[str]:
    """A row a model, and one for all of them, as Markdown."""
    heads = (
        "model",
        "starts",
        "predicted",
        "throughput error, mean / max",
        "memory error, mean / max",
        "estimate against real, greatest",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---:|---:|---:|"
    every: dict[str, list[float]] = {"throughput": [], "memory": []}
    for result in results:
        errors = {key: _errors(result, key) for key in every}
        for key, values in errors.items():
            every[key] += values
        starts = ", ".join(str(one["start"]) for one in result["starts"])
        yield (
            f"| {result['model']} | {starts} | {', '.join(map(str, result['truth']))} "
            f"| {_mean_max(errors['throughput'])} | {_mean_max(errors['memory'], 2)} "
            f"| {_estimate_error(result)} |"
        )
    yield (f"| all | | | {_mean_max(every['throughput'])} | {_mean_max(every['memory'], 2)} | |")


def _errors(result: Json, key: str) -> list[float]:
    return [one[key] for start in result["starts"] for one in start["errors"].values()]


def _mean_max(values: list[float], digits: int = 1) -> str:
    return f"{statistics.mean(values):.{digits}%} / {max(values):.{digits}%}"


def _estimate_error(result: Json) -> str:
    truth = result["truth"]
    errors = [size / truth[batch]["bytes"] - 1 for batch, size in result["estimates"].items()]
    return f"{max(errors, key=abs):+.2%}" if errors else "–"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line for line in lines if line.startswith("model name"))
    name = next(names, ": unknown").partition(":")[2].strip()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
