"""Predicted against measured on this machine's CPU: changes of layers that a script has to make.

    python benchmarks/whatif_layers.py [--rounds N] [--width N]

One small transformer is recorded once and asked: what if its blocks were checkpointed, the last
block were gone, and query, key and value were one product? Then the four models, made that way,
train in turn on one thread, in each round each in a separate process: where a process's memory
happens to lie makes the same product of matrices up to half as slow again, so one process tells
little. Steps are measured in CPU time, which other programs disturb less; a step computes on one
thread and waits for nothing. Predicted is the measured step over the predicted speedup, since
recording itself costs time. *Measured* is the median of the rounds, *spread* the longest less the
shortest over it, *least* the gain of the shortest over the shortest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stepscope
from stepscope.graph import build_graph
from stepscope.whatif import CHANGES, Prediction, parse_request, predict

LENGTH, BATCH, BLOCKS = 128, 8, 6
WARMUP, STEPS = 2, 4
# As benchmarks/whatif_accuracy.py: freed memory stays with the process.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
LAYERS = "metaflow:merge=blocks.*.query|blocks.*.key|blocks.*.value"


class Block(nn.Module):
    """Attention of one head and a perceptron; query, key and value apart or as one product."""

    def __init__(self, width: int, merged: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        if merged:
            self.all = nn.Linear(width, 3 * width)
        else:
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        if hasattr(self, "all"):
            query, key, value = self.all(y).chunk(3, -1)
        else:
            query, key, value = self.query(y), self.key(y), self.value(y)
        weights = torch.softmax(query @ key.transpose(1, 2) / x.shape[-1] ** 0.5, -1)
        x = x + self.out(weights @ value)
        return x + self.down(torch.relu(self.up(self.between(x))))


class Model(nn.Module):
    """A row of blocks."""

    def __init__(
        self, width: int, blocks: int = BLOCKS, merged: bool = False, again: bool = False
    ) -> None:
        super().__init__()
        self.width, self.again = width, again
        self.blocks = nn.ModuleList(Block(width, merged) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


class Training:
    """A model with its optimizer."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run(self, steps: int) -> float:
        """Train for some steps; seconds of CPU time a step."""
        begin = process_time()
        for _ in range(steps):
            x = torch.randn(BATCH, LENGTH, self.model.width)
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (process_time() - begin) / steps


LAST = BLOCKS - 1
MADE = {
    "": {},
    "checkpoint:module=blocks.*": {"again": True},
    f"metaflow:delete=blocks.{LAST}": {"blocks": LAST},
    LAYERS: {"merged": True},
}


def train(change: str, width: int) -> None:
    """Print a step of the model made that way, seconds of CPU time."""
    training = Training(Model(width, **MADE[change]))
    training.run(WARMUP)
    print(training.run(STEPS))


def step_ms(change: str, width: int) -> float:
    """The same in a separate process, ms."""
    command = [sys.executable, __file__, f"--width={width}", f"--train={change}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout) * 1e3


def predictions(changes: list[str], width: int) -> list[Prediction]:
    """What is predicted from one recording of the model as it is."""
    training = Training(Model(width))
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.stepscope")
        with stepscope.profile(training.model, path=path):
            training.run(12)
        graph = build_graph(stepscope.open(path))
    return [predict(graph, [parse_request(text, CHANGES)]) for text in changes]


def compare(rounds: int, width: int) -> None:
    """Print the table, in Markdown."""
    changes = list(MADE)[1:]
    answers = predictions(changes, width)
    times = [[step_ms(change, width) for change in MADE] for _ in range(rounds)]
    before, *after = zip(*times, strict=True)
    print("| change | before, ms | predicted | range | measured | error | gain predicted "
          "| measured | least | spread |\n|---|" + "---:|" * 9)  # fmt: skip
    for change, answer, steps in zip(changes, answers, after, strict=True):
        print(row(change, answer, before, steps))


def row(
    change: str, answer: Prediction, before: tuple[float, ...], after: tuple[float, ...]
) -> str:
    """A line of the table: steps in ms, gains as parts of the step."""
    text, was, took = change.replace("|", "\\|"), median(before), median(after)
    step = was / answer.speedup
    low, high = (one / answer.predicted_step_ms * step for one in answer.range)
    spreads = " / ".join(f"{(max(one) - min(one)) / median(one):.0%}" for one in (before, after))
    return (
        f"| `{text}` | {was:.1f} | {step:.1f} | {low:.1f} to {high:.1f} | {took:.1f} "
        f"| {step / took - 1:+.1%} | {1 - 1 / answer.speedup:+.1%} | {1 - took / was:+.1%} "
        f"| {1 - min(after) / min(before):+.1%} | {spreads} |"
    )


def main() -> None:
    """Compare, or train one model for a comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--train", choices=MADE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.train is None:
        compare(arguments.rounds, arguments.width)
    else:
        train(arguments.train, arguments.width)


if __name__ == "__main__":
    if any(name not in os.environ for name in ENVIRONMENT):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    main()
