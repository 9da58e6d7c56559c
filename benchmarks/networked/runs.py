"""Measured runs, one JSON line each, so that an interrupted benchmark goes on where it was."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.networked.job import Job
from benchmarks.networked.points import Point

from stepscope.models.verify.comparison import middle_mean

UNCHANGED = "together"  # the name of training without communication, in all workers at once


@dataclass(frozen=True)
class Run:
    """Steps of one way to train, in one round; times in ns.

    Attributes:
        model, topology, way: by name.
        mbit: the bandwidth.
        round: which of the rounds.
        steps_ns: the length of each step of rank 0.
        cpu_ns: its CPU time.
        waited_ns: how long its threads could run but had no core.
        optimizer_ns: time in the optimizer, where that is a part of the step by itself.
        training_cpu_ns: CPU time of the thread that trains.
        training_waited_ns: how long that thread could run but had no core.
        load: the machine's load average.
        date: when, UTC.
        unchanged: steps right before and after, of all workers at once without communication:
            the machine's speed at that time. Their `steps_ns` and `optimizer_ns`.
    """

    model: str
    topology: str
    mbit: int
    way: str
    round: int
    steps_ns: list[int]
    cpu_ns: list[int]
    waited_ns: list[int]
    optimizer_ns: list[int]
    training_cpu_ns: list[int]
    training_waited_ns: list[int]
    load: float
    date: str
    unchanged: Mapping[str, list[int]]

    @property
    def step_ms(self) -> float:
        """The mean of the middle half of the steps."""
        return middle_mean(self.steps_ns) / 1e6

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        """What it measures."""
        return self.model, self.topology, self.mbit, self.way, self.round


class Runs:
    """The runs of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._runs = {run.key: run for run in (Run(**json.loads(line)) for line in lines)}

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def has(self, key: tuple[str, str, int, str, int]) -> bool:
        """Whether a run is there."""
        return key in self._runs

    def add(self, run: Run) -> None:
        """Append a run to the file."""
        self._runs[run.key] = run
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")

    def of(self, point: Point) -> list[Run]:
        """The rounds of a point."""
        wanted = point.model, point.topology.name, point.mbit, point.way
        return [run for run in self if run.key[:4] == wanted]


def measured(job: Job, key: tuple[str, str, int, str, int], warmup: int, steps: int) -> Run:
    """Train and measure."""
    before = job.train(UNCHANGED, warmup, steps)
    found = job.train(key[3], warmup, steps)
    after = job.train(UNCHANGED, warmup, steps)
    unchanged = {name: before[name] + after[name] for name in ("steps_ns", "optimizer_ns")}
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    load = round(os.getloadavg()[0], 1)
    return Run(*key, **found, load=load, date=date, unchanged=unchanged)


def median_ms(runs: list[Run]) -> float:
    """The median step of some rounds."""
    return statistics.median(run.step_ms for run in runs)


def spread(runs: list[Run]) -> float:
    """The longest less the shortest round, over the median."""
    times = [run.step_ms for run in runs]
    return (max(times) - min(times)) / statistics.median(times)
