"""The CPU time that P3 takes in a step without any network: a single worker, which sends nothing.

    python benchmarks/update_cost.py [--steps N]

P3 updates each module by itself before its next use, and calls Python for each gradient. A line has
the median CPU time of the thread that trains, with and without P3.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.networked.links import environment
from benchmarks.networked.models import MODELS, make_task
from benchmarks.networked.trainers import Trainer, make_trainer
from torch import distributed

_PORT, _WARMUP = 29591, 4


def cpu_ms(trainers: dict[str, Trainer], steps: int) -> dict[str, float]:
    """The median of each trainer's steps, in turn."""
    found: dict[str, list[float]] = {way: [] for way in trainers}
    for _ in range(_WARMUP + steps):
        for way, trainer in trainers.items():
            begin = time.thread_time()
            trainer.step()
            found[way].append(1e3 * (time.thread_time() - begin))
    return {way: statistics.median(times[_WARMUP:]) for way, times in found.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    os.environ.update({**environment(0, 1, _PORT), "MASTER_ADDR": "127.0.0.1"})
    del os.environ["GLOO_SOCKET_IFNAME"], os.environ["WORKER_ADDRESS"]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    print("| model | modules | parameters | alone, ms | P3, ms |\n|---|---:|---:|---:|---:|")
    for model in MODELS:
        trainers = {way: make_trainer(way, make_task(model)) for way in ("alone", "p3")}
        tree = make_task(model).model
        own = sum(any(True for _ in one.parameters(recurse=False)) for one in tree.modules())
        times = cpu_ms(trainers, steps)
        parameters = len(list(tree.parameters()))
        cells = f"{own} | {parameters} | {times['alone']:.1f} | {times['p3']:.1f}"
        print(f"| {model} | {cells} |", flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads of gloo that still run would abort the process


if __name__ == "__main__":
    main()
