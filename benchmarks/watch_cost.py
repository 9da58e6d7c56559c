"""What `stepscope watch` costs a step, on this machine.

    python benchmarks/watch_cost.py [--ms 20 200] [--pairs N]

One process trains in short blocks, in turns plain and watched, in random order within each pair.
Printed is the CPU time of the training thread (the watch has one more, which samples it) of a watched
block over that of the plain one next to it: the mean of all pairs, with its 95 % interval (bootstrap
over pairs).
"""

import argparse
import os
import random
import tempfile
from pathlib import Path
from statistics import mean
from time import thread_time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.record.manifest import Run
from stepscope.record.options import RecordOptions
from stepscope.record.session import Ending
from stepscope.record.watch.watch_session import WatchSession

BLOCK_S, WIDTH, BATCH, DRAWS = 0.4, 256, 64, 2000
SETTLING_S = 0.3  # before each block, plain or watched: what begins once per run is no cost of a step


class Training:
    """A network with a DataLoader, so deep that a step takes `ms`."""

    def __init__(self, ms: float) -> None:
        self.steps = max(round(1000 * BLOCK_S / ms), 2)
        self.settling = max(round(1000 * SETTLING_S / ms), 3)
        self.depth = 4
        self._make()
        self.block(5)
        self.depth = max(round(self.depth * ms / (1000 * self.block(20))), 1)
        self._make()

    def _make(self) -> None:
        layers = [layer for _ in range(self.depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def block(self, steps: int) -> float:
        """Train; CPU seconds a step."""
        batches = DataLoader(TensorDataset(torch.randn(steps * BATCH, WIDTH)), batch_size=BATCH)
        begin = thread_time()
        for (batch,) in batches:
            loss = self.model(batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return (thread_time() - begin) / steps

    def plain(self, steps: int) -> float:
        """CPU seconds a step, after a few others."""
        self.block(self.settling)
        return self.block(steps)

    def watched(self, steps: int, folder: str) -> float:
        """The same, watched."""
        session = WatchSession(Run(["train.py"], RecordOptions()), Path(folder) / "train.watch")
        session.attach()
        try:
            return self.plain(steps)
        finally:
            session.finish(Ending())
            assert session.failure is None, session.failure


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Watched over plain: the ratio of the means, and its 95 % interval."""
    rng = random.Random(0)
    ratios = []
    for _ in range(DRAWS):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(mean(watched for _, watched in drawn) / mean(plain for plain, _ in drawn))
    ratios.sort()
    ratio = mean(watched for _, watched in pairs) / mean(plain for plain, _ in pairs)
    return ratio, ratios[DRAWS // 40], ratios[-DRAWS // 40]


def main() -> None:
    """Print the ratio for each length of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ms", type=float, nargs="+", default=[20, 200])
    parser.add_argument("--pairs", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEPSCOPE_REQUESTS"] = f"{folder}/requests"  # nobody asks for recordings
        for ms in arguments.ms:
            training = Training(ms)
            training.watched(training.steps, folder)  # the first imports
            pairs = []
            for _ in range(arguments.pairs):
                order = [False, True] if random.random() < 0.5 else [True, False]
                took = {
                    watches: training.watched(training.steps, folder)
                    if watches
                    else training.plain(training.steps)
                    for watches in order
                }
                pairs.append((took[False], took[True]))
            ratio, least, most = interval(pairs)
            plain_ms = 1000 * mean(plain for plain, _ in pairs)
            print(
                f"{plain_ms:.1f} ms a step: watched over plain {ratio:.4f} ({least:.4f} to {most:.4f}), "
                f"{1000 * plain_ms * (ratio - 1):.0f} us a step"
            )


if __name__ == "__main__":
    main()
