"""`amp` and `fused_optimizer` on this machine's CPU, for models that nothing was tuned for.

    python benchmarks/unseen_models.py [--rounds N] [--model NAME…]

Each model of `benchmarks/unseen/networks.py` is recorded once and predicted from that and a
calibration of its operators. Then it trains as it is, with autocast and with a fused AdamW, in one
process and on one thread, in turn: steps are CPU time, which other programs disturb less. *Measured*
is the ratio of the medians over all rounds, *error* that of the predicted step with the change.
Modules and stages of the same models: `pytest -qs tests/integration/test_unseen_models.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.unseen.networks import NETWORKS
from benchmarks.whatif_layers import ENVIRONMENT

import stepscope
from stepscope.graph import build_graph
from stepscope.models.calibration.calibration import calibrate
from stepscope.models.whatif import CHANGES, parse_request, predict

WARMUP, STEPS, IN_TURN = 3, 6, 2  # unrecorded, recorded; of each kind before the next
AFTERWARDS = 20  # unrecorded steps that show what recording costs
KINDS = {"amp": {"autocast": True}, "fused_optimizer": {"fused": True}}


class Trained:
    """A model that trains as it is, with autocast, or with a fused optimizer."""

    def __init__(self, name: str, autocast: bool = False, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.training, self._autocast = NETWORKS[name](), autocast
        self._optimizer = torch.optim.AdamW(self.training.model.parameters(), lr=1e-4, fused=fused or None)

    def step(self) -> float:
        """Train for a step; ms of CPU time."""
        begin = process_time()
        batch = self.training.batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            loss = self.training.loss(*batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return (process_time() - begin) * 1e3


def predicted(name: str) -> dict[str, float]:
    """The step with each change over that without, from one recording."""
    trained = Trained(name)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.stepscope")
        with stepscope.profile(trained.training.model, path=path, warmup=WARMUP, steps=STEPS):
            for _ in range(WARMUP + STEPS + AFTERWARDS):
                trained.step()
        trace = stepscope.open(path)
    calibrate(trace)
    graph = build_graph(trace)
    answers = {change: predict(graph, [parse_request(change, CHANGES)]) for change in KINDS}
    return {change: one.predicted_step_ms / one.replayed_step_ms for change, one in answers.items()}


def measured(name: str, rounds: int) -> dict[str, list[float]]:
    """Steps without and with each change, in turn, ms."""
    trained = {"": Trained(name), **{change: Trained(name, **kind) for change, kind in KINDS.items()}}
    times: dict[str, list[float]] = {kind: [] for kind in trained}
    for number in range(rounds + 1):
        for kind, one in list(trained.items())[:: 1 if number % 2 else -1]:
            steps = [one.step() for _ in range(IN_TURN)]
            times[kind] += steps if number else []
    return times


def main() -> None:
    """Compare and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | change | before, ms | predicted | measured | error |")
    print("|---|---|---:|---:|---:|---:|")
    for name in arguments.model:
        ratios, times = predicted(name), measured(name, arguments.rounds)
        before = median(times[""])
        for change, ratio in ratios.items():
            truth = median(times[change]) / before
            print(
                f"| {name} | `{change}` | {before:.1f} | {1 / ratio:.2f}x | {1 / truth:.2f}x "
                f"| {ratio / truth - 1:+.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    if any(name not in os.environ for name in ENVIRONMENT):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    main()
