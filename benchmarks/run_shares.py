"""What the counters of the whole run cost: CPU time per training step with them and without.

    python benchmarks/run_shares.py [--steps 400] [--rounds 15]

The step is as small as one gets, so the ratio is the worst case. Rounds alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from stepscope.record.run_shares.activity_hooks import ActivityHooks
from stepscope.record.run_shares.activity_log import ActivityLog


def cpu_us(steps: int, batches: Any, model: Any, optimizer: Any) -> float:
    """CPU time per step, µs."""
    begun = time.thread_time_ns()
    for _, batch in zip(range(steps), batches, strict=False):
        with torch.no_grad():
            batch = batch * 2
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return (time.thread_time_ns() - begun) / steps / 1e3


def main() -> None:
    """Print medians of both and of their difference."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--rounds", type=int, default=15)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(list(torch.ones(chosen.steps, 4)), batch_size=None)  # type: ignore[arg-type]
    cpu_us(chosen.steps, loader, model, optimizer)
    without, counted = [], []
    for _ in range(chosen.rounds):
        without.append(cpu_us(chosen.steps, loader, model, optimizer))
        hooks = ActivityHooks(ActivityLog())
        counted.append(cpu_us(chosen.steps, loader, model, optimizer))
        hooks.remove()
    each = [after - before for before, after in zip(without, counted, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    print(f"without {statistics.median(without):.1f} µs, with {statistics.median(counted):.1f} µs")
    print(f"the counters: {middle:.1f} µs per step (quartiles {low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
