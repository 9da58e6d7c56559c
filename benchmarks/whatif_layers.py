"""Predicted against measured on this machine's CPU: changes of layers that a script has to make.

    python benchmarks/whatif_layers.py [--rounds N] [--model NAME…] [--out FILE]
    python benchmarks/whatif_layers.py --table FILE…

Models (`benchmarks/layered/cases.py`) are asked: what if blocks were checkpointed, the last one
were gone, layers with the same input were one, a perceptron were half as wide? Then they train as
they are and made that way, in turn on one thread; in each round each in a separate process, since
where a process's memory happens to lie makes the same product of matrices up to half as slow again.
So does each round record the model again, in a separate process, and predict from that.

Steps are measured in CPU time, which other programs disturb less; a step computes on one thread and
waits for nothing. A process's step is the shortest of its steps. *Predicted* is the median of the
predictions of all rounds, *measured* that of the ratios within a round; *error* is of the time of
the changed step, *one recording* the greatest error of a single round's prediction against the
measured median, *spread* the range of the measured ratios over their median.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import process_time
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from benchmarks.layered.cases import CASES, Case

import stepscope
from stepscope.graph import build_graph
from stepscope.models.whatif import CHANGES, parse_request, predict


class Effort(NamedTuple):
    """How many steps a process takes; those after the recorded ones show what recording costs."""

    warmup: int = 3
    steps: int = 6
    afterwards: int = 20


QUICK = Effort(warmup=1, steps=2, afterwards=3)
# As benchmarks/whatif_accuracy.py: freed memory stays with the process.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


@dataclass(frozen=True)
class Result:
    """A change of a model.

    Attributes:
        before, after: its step without and with the change in each round, ms.
        predicted: the step with the change over that without, from each round's recording.
    """

    model: str
    change: str
    before: list[float]
    after: list[float]
    predicted: list[float]

    @property
    def ratios(self) -> list[float]:
        """The measured step with the change over that without, in each round."""
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def error(self) -> float:
        """Of the median prediction."""
        return median(self.predicted) / median(self.ratios) - 1

    @property
    def greatest_error(self) -> float:
        """Of a single recording's prediction."""
        return max((one / median(self.ratios) - 1 for one in self.predicted), key=abs)

    @property
    def spread(self) -> float:
        """Of the measured ratios, over their median."""
        return (max(self.ratios) - min(self.ratios)) / median(self.ratios)

    @property
    def has_wrong_sign(self) -> bool:
        """Whether a gain was predicted where all rounds lost, or the other way round."""
        gains = median(self.predicted) < 1
        return all((ratio < 1) != gains for ratio in self.ratios)


class Training:
    """A model with its optimizer."""

    def __init__(self, case: Case, change: str = "") -> None:
        torch.manual_seed(0)
        self.model, self.batch = case.model(change), case.batch
        self.optimizer = case.optimizer(self.model.parameters())

    def step(self) -> float:
        """Train for a step; seconds of CPU time."""
        begin = process_time()
        inputs, labels = self.batch()
        F.cross_entropy(self.model(*inputs), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return process_time() - begin


def shortest_ms(name: str, change: str, effort: Effort) -> float:
    """The shortest step of the model made that way, ms of CPU time."""
    training = Training(CASES[name], change)
    times = [training.step() for _ in range(effort.warmup + effort.steps)]
    return min(times[effort.warmup :]) * 1e3


def predictions(name: str, effort: Effort) -> list[float]:
    """The step with each of the model's changes over that without, from one recording."""
    training = Training(CASES[name])
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.stepscope")
        with stepscope.profile(training.model, path=path, warmup=effort.warmup, steps=effort.steps):
            for _ in range(sum(effort)):
                training.step()
        graph = build_graph(stepscope.open(path))
    answers = [predict(graph, [parse_request(one, CHANGES)]) for one in CASES[name].changes]
    return [answer.predicted_step_ms / answer.replayed_step_ms for answer in answers]


def in_process(*options: str) -> list[float]:
    """What this program prints with these options, in a separate process."""
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def compare(name: str, rounds: int, quick: bool) -> Iterator[Result]:
    """Each change of a model, measured and predicted in turn."""
    shorter = ["--quick"] if quick else []
    changes = CASES[name].changes
    times, told = [], []
    for number in range(rounds):
        # The order alternates, so that drift affects all alike.
        turns = ["", *changes] if number % 2 == 0 else [*changes[::-1], ""]
        steps = {one: in_process("--train", name, one, *shorter)[0] for one in turns}
        times.append([steps[one] for one in ("", *changes)])
        told.append(in_process("--predict", name, *shorter))
    before, *after = (list(column) for column in zip(*times, strict=True))
    for change, steps, ratios in zip(changes, after, zip(*told, strict=True), strict=True):
        yield Result(name, change, before, steps, list(ratios))


def table(results: list[Result]) -> str:
    """All results in Markdown, and a line for each change."""
    lines = [
        "| model | change | before, ms | predicted | measured | error | one recording | spread |",
        "|---|---|" + "---:|" * 6,
        *map(row, results),
        "",
        "| change | points | mean error | worst | worst of one recording | wrong signs |",
        "|---|" + "---:|" * 5,
    ]
    kinds = {kind(one): [other for other in results if kind(other) == kind(one)] for one in results}
    return "\n".join(lines + [summary(name, some) for name, some in kinds.items()])


def kind(result: Result) -> str:
    """The change without what it applies to."""
    return result.change.partition("=")[0]


def row(result: Result) -> str:
    """A line of the table."""
    change, before = result.change.replace("|", "\\|"), median(result.before)
    predicted, measured = (median(some) * before for some in (result.predicted, result.ratios))
    return (
        f"| {result.model} | `{change}` | {before:.1f} | {predicted:.1f} | {measured:.1f} "
        f"| {result.error:+.1%} | {result.greatest_error:+.1%} | {result.spread:.0%} |"
    )


def summary(name: str, results: list[Result]) -> str:
    """The errors of one kind of change."""
    errors = [abs(one.error) for one in results]
    single = max(abs(one.greatest_error) for one in results)
    wrong = sum(one.has_wrong_sign for one in results)
    return f"| `{name}` | {len(results)} | {mean(errors):.1%} | {max(errors):.1%} | {single:.1%} | {wrong} |"


def main() -> None:
    """Compare, or do one process's part of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="few steps: for tests")
    parser.add_argument("--out", type=Path, help="all times and predictions, as JSON")
    parser.add_argument("--table", type=Path, nargs="+", help="the table of such files")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--predict", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    effort = QUICK if arguments.quick else Effort()
    if arguments.train:
        print(json.dumps([shortest_ms(*arguments.train, effort)]))
    elif arguments.predict:
        print(json.dumps(predictions(arguments.predict, effort)))
    else:
        report(arguments)


def report(arguments: argparse.Namespace) -> None:
    """Measure the models, or read the results of earlier runs; print the table."""
    if arguments.table:
        results = [Result(**one) for file in arguments.table for one in json.loads(file.read_text())]
    else:
        results = [
            one for name in arguments.model for one in compare(name, arguments.rounds, arguments.quick)
        ]
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(one) for one in results], indent=1))
    print(table(results))


if __name__ == "__main__":
    if any(name not in os.environ for name in ENVIRONMENT):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    main()
