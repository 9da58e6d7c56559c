"""Predicted against measured on this machine's CPU: changes of layers that a script has to make.

    python benchmarks/whatif_layers.py [--rounds N] [--width N]

One small transformer is recorded once and asked: what if its blocks were checkpointed, the last
block were gone, and query, key and value were one product? Then the four models are run, made that
way, in turn on one thread. Predicted is the measured step over the predicted speedup, since
recording itself costs time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stepscope
from stepscope.graph import build_graph
from stepscope.whatif import CHANGES, parse_request, predict

LENGTH, BATCH, BLOCKS = 128, 8, 6
STEPS = 2
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
        """Train for some steps; seconds a step."""
        begin = perf_counter()
        for _ in range(steps):
            x = torch.randn(BATCH, LENGTH, self.model.width)
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (perf_counter() - begin) / steps


def speedups(changes: list[str], width: int) -> list[float]:
    """What is predicted from one recording of the model as it is."""
    training = Training(Model(width))
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.stepscope")
        with stepscope.profile(training.model, path=path):
            training.run(12)
        graph = build_graph(stepscope.open(path))
    return [predict(graph, [parse_request(text, CHANGES)]).speedup for text in changes]


def main(rounds: int, width: int) -> None:
    """Print the table, in Markdown."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    last = BLOCKS - 1
    made = {
        "checkpoint:module=blocks.*": Model(width, again=True),
        f"metaflow:delete=blocks.{last}": Model(width, blocks=last),
        LAYERS: Model(width, merged=True),
    }
    predicted = speedups(list(made), width)
    trainings = [Training(model) for model in (Model(width), *made.values())]
    for training in trainings:
        training.run(3)
    times = [[training.run(STEPS) for training in trainings] for _ in range(rounds)]
    before, *after = (median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"| change | before, ms | predicted | measured | error |\n|---|{'---:|' * 4}")
    for change, gain, measured in zip(made, predicted, after, strict=True):
        text = change.replace("|", "\\|")
        step = before / gain
        print(f"| `{text}` | {before:.1f} | {step:.1f} | {measured:.1f} "
              f"| {step / measured - 1:+.1%} |")  # fmt: skip


if __name__ == "__main__":
    if any(name not in os.environ for name in ENVIRONMENT):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=256)
    main(**vars(parser.parse_args()))
