"""What `stepscope watch` and TraceML cost a step of the same script, on this machine.

    python benchmarks/watch_beside.py --python PYTHON [--ms 20] [--rounds 20] [--seconds 10]

PYTHON belongs to an environment with torch, stepscope and traceml-ai. In each round the same
training runs as a process of its own: plain, under `stepscope watch`, and under `traceml run` with
the two lines that TraceML asks of a plain loop; in random order. Printed are the CPU time of a step
on the training thread, that of its process, and the time on the clock, each over those of the plain
run of the round: the ratio of the means, with its 95 % interval (bootstrap over rounds).
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watch_cost import BATCH, WIDTH, interval

CLOCKS = {"training thread": time.thread_time, "process": time.process_time, "clock": time.perf_counter}
WAYS = {
    "plain": [],
    "stepscope watch": ["-m", "stepscope", "watch", "-o", "train.watch"],
    "traceml run": ["-m", "traceml_ai.launcher.cli", "run"],
}
WARM_UP_S = 3.0  # what begins once per run is no cost of a step
Took = dict[str, float]


def train(out: str, traced: bool, depth: int, seconds: float) -> None:
    """Train for some seconds, and write how long a step took by each clock, s."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    around_step: Any = nullcontext
    if traced:
        import traceml_ai as traceml

        traceml.init(mode="auto")
        around_step = lambda: traceml.trace_step(model)  # noqa: E731
    loader = DataLoader(TensorDataset(torch.randn(256 * BATCH, WIDTH)), batch_size=BATCH)

    def steps_of(length_s: float) -> int:
        """Whole epochs, until that time is over; how many steps."""
        steps, end = 0, time.perf_counter() + length_s
        while time.perf_counter() < end:
            for (batch,) in loader:
                with around_step():
                    loss = model(batch).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                steps += 1
        return steps

    steps_of(WARM_UP_S)
    before = {name: clock() for name, clock in CLOCKS.items()}
    steps = steps_of(seconds)
    took = {name: (clock() - before[name]) / steps for name, clock in CLOCKS.items()}
    Path(out).write_text(json.dumps(took))


def run(python: str, way: str, depth: int, seconds: float) -> Took:
    """One process; how long its steps took by each clock, s."""
    with tempfile.TemporaryDirectory() as folder:
        script = [str(Path(__file__).resolve())]
        options = ["--train", "took.json", "--depth", str(depth), "--seconds", str(seconds)]
        if way == "traceml run":
            script, options = [*script, "--args"], [*options, "--traced"]
        command = [python, *WAYS[way], *script, *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{way}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads((Path(folder) / "took.json").read_text())


def depth_of(python: str, ms: float) -> int:
    """How many layers make a step so long."""
    return max(round(8 * ms / (1000 * run(python, "plain", 8, 2.0)["training thread"])), 1)


def main() -> None:
    """Print the ratios, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--depth", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.train:
        train(arguments.train, arguments.traced, arguments.depth, arguments.seconds)
        return
    depth = depth_of(arguments.python, arguments.ms)
    rounds = []
    for _ in range(arguments.rounds):
        ways = random.sample(list(WAYS), len(WAYS))
        rounds.append({way: run(arguments.python, way, depth, arguments.seconds) for way in ways})
    plain_ms = 1000 * mean(one["plain"]["training thread"] for one in rounds)
    print(f"{plain_ms:.1f} ms of CPU time a step, {len(rounds)} rounds")
    for way in list(WAYS)[1:]:
        for clock in CLOCKS:
            ratio, least, most = interval([(one["plain"][clock], one[way][clock]) for one in rounds])
            print(f"{way}, {clock}: {ratio:.4f} ({least:.4f} to {most:.4f})")


if __name__ == "__main__":
    main()
