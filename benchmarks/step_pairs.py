"""Whether the pytest plugin and the GitHub action decide right: 60 pairs of generated scripts.

    python benchmarks/step_pairs.py plugin               # six minutes
    python benchmarks/step_pairs.py action               # an hour
    python benchmarks/step_pairs.py action --every 10    # each tenth pair

Of 20 pairs the head does the same work as its base, of 20 it does 3 % more, of 20 10 % more. With a
limit of 2 % none of the first may be `slower`, none of the others `not slower`, and all with 10 %
must be found. Runs of the action are forks of a process that has torch, to save its import.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "action"), str(ROOT / "tests/integration")]
import compare_steps  # noqa: E402
from warm_python import run_stepscope  # noqa: E402

LIMIT = 2.0  # percent, the default of both
STEPS = 400  # of a run of the action, some 2 s
UNITS = 100  # of work in a step of the base
SCRIPT = """
import torch

torch.set_num_threads(1)
torch.manual_seed({seed})
layers = [torch.nn.Linear({width}, {width}) for _ in range({units})]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn({batch}, {width})


def step():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()


if __name__ == "__main__":
    for _ in range({steps}):
        step()
"""


def write_script(folder: Path, seed: int, more: int) -> Path:
    """A script whose step does `more` percent more units of work; its shapes are of the seed."""
    chance = random.Random(seed)
    shapes = {"width": chance.choice([48, 64, 96, 128]), "batch": chance.choice([16, 32, 64])}
    units = UNITS * (100 + more) // 100
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.py"
    path.write_text(SCRIPT.format(seed=seed, units=units, steps=STEPS, **shapes))
    return path


def by_plugin(base: Path, head: Path, out: Path) -> tuple[str, int]:
    """The verdict of `time_steps`, and the pairs that it took."""
    from stepscope.faces import pytest_plugin

    steps = [runpy.run_path(str(path))["step"] for path in (head, base)]
    decision, _, pairs = pytest_plugin._measure(*steps, None, LIMIT, 30)
    return decision.verdict, pairs


def by_action(base: Path, head: Path, out: Path) -> tuple[str, int]:
    """The verdict that the action writes, and the pairs that it took."""
    compare_steps.stepscope = stepscope
    compare_steps.compare((base.parent, head.parent), out, ["train.py"], LIMIT, 20)
    summary = json.loads((out / "steps.json").read_text())
    return summary["verdict"], len(summary["base_ms"])


def stepscope(folder: Path, command: str, out: Path, script: list[str]) -> None:
    """As in `compare_steps`, in a process that is forked; nothing is recorded for a page."""
    out.unlink(missing_ok=True)
    if command == "watch" and (run := run_stepscope([command, "-o", str(out), *script], folder)).returncode:
        sys.exit(f"exit code {run.returncode}\n{run.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("face", choices=["plugin", "action"])
    parser.add_argument("--every", type=int, default=1, help="of how many pairs one is measured")
    options = parser.parse_args()
    decide = {"plugin": by_plugin, "action": by_action}[options.face]
    verdicts: dict[int, Counter[str]] = {0: Counter(), 3: Counter(), 10: Counter()}
    counts: dict[int, list[int]] = {more: [] for more in verdicts}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for seed, more in list(product(range(20), verdicts))[:: options.every]:
            here = Path(folder, f"{seed}_{more}")
            scripts = write_script(here / "base", seed, 0), write_script(here / "head", seed, more)
            verdict, pairs = decide(*scripts, here)
            verdicts[more][verdict] += 1
            counts[more].append(pairs)
            print(f"seed {seed}, {more} % more: {verdict} after {pairs} pairs", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{options.face}, {seconds:.0f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("| more work | slower | not slower | cannot tell | pairs, median and most |")
    print("|---|---:|---:|---:|---:|")
    for more, found in verdicts.items():
        row = " | ".join(str(found[name]) for name in ("slower", "not slower", "cannot tell"))
        taken = counts[more] or [0]
        print(f"| {more} % | {row} | {statistics.median(taken):.0f}, {max(taken)} |")


if __name__ == "__main__":
    main()
