"""Loops with a part that runs every n-th step: each part's time in the report, against its own timer.

    python benchmarks/rare_loops.py [--loops 100] [--seed 0]

Each loop is generated: PyTorch or JAX, a network of random size, and every 2nd to 8th step an
evaluation, a checkpoint, a logging of statistics, a second loss or a moving average. `stepscope run`
records some of its steps; the loop times its parts by hand, in all steps. A part holds if the report is
within 10 % of the truth: of PyTorch, the mean over the recorded steps of the median of unrecorded ones
that do the same, and of JAX, whose report has the times of recorded steps, the mean over these. A rare
part of PyTorch is what its stage and `other` take more than in steps without it: a checkpoint begins
with `state_dict()`. A part is also right within the spread that the report prints next to its place.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np

import stepscope
from stepscope.facts.summary.report_facts import places_of
from stepscope.facts.summary.selected_steps import SelectedSteps

RECORDED, AFTER = 9, 240  # steps, and steps that nothing records any more
LAST = 60  # of these: in the first, the recorder's own timers make optimizers 20 to 80 µs longer
LEAST = 0.02  # of the step: smaller parts are not judged
ENOUGH = 0.10
COMMON = """
import json, sys, time
spent = []
class timed:
    def __init__(self, part): self.part = part
    def __enter__(self): self.begun = time.perf_counter()
    def __exit__(self, *_):
        spent[-1][self.part] = spent[-1].get(self.part, 0) + 1e3 * (time.perf_counter() - self.begun)
def end(): open(sys.argv[1], "w").write(json.dumps(spent))
"""
TORCH = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_flush_denormal(True)
model = nn.Sequential(*[layer for _ in range({depth}) for layer in (nn.Linear({width}, {width}), nn.ReLU())])
critic = nn.Sequential(nn.Linear({width}, {width}), nn.ReLU(), nn.Linear({width}, 1))
average = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.{optimizer}([*model.parameters(), *critic.parameters()], lr=1e-3)
held_out = torch.randn({times}, {batch}, {width})
batches = torch.randn(8, {batch}, {width})
def evaluate():
    model.eval()
    with torch.no_grad():
        for x in held_out: model(x).square().mean()
    model.train()
def save_checkpoint():
    for _ in range({files}): torch.save(model.state_dict(), sys.argv[1] + ".pt")
def log_statistics():
    for x in held_out: (x.float().square().mean(1).sqrt() + x.abs().amax(1)).round()
def update_average():
    with torch.no_grad():
        for _ in range({files}):
            for kept, now in zip(average, model.parameters()): kept.lerp_(now, 0.01)
for i in range({steps}):
    spent.append({{}})
    x = batches[i % 8]
    with timed("forward"):
        loss = (model(x) - x).square().mean()
{second}
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"): optimizer.step()
{rare}
end()
"""
JAX = """
import jax, jax.numpy as jnp, numpy as np
keys = jax.random.split(jax.random.key(0), {depth})
params = [0.05 * jax.random.normal(key, ({width}, {width})) for key in keys]
def model(params, x):
    for weight in params: x = jax.nn.relu(x @ weight)
    return x
def loss_of(params, x): return jnp.mean((model(params, x) - x) ** 2)
@jax.jit
def update(params, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return [p - 1e-3 * g for p, g in zip(params, grads)], loss
score = jax.jit(loss_of)
generator = np.random.default_rng(0)
held_out = [generator.standard_normal(({batch}, {width}), np.float32) for _ in range({times})]
batches = [generator.standard_normal(({batch}, {width}), np.float32) for _ in range(8)]
def evaluate():
    for x in held_out: score(params, x).block_until_ready()
def save_checkpoint():
    for _ in range({files}): np.savez(sys.argv[1] + ".npz", *params)
for i in range({steps}):
    spent.append({{}})
    x = batches[i % 8]
    with timed("update"):
        params, loss = update(params, x)
        loss.block_until_ready()
{rare}
end()
"""
RARE = {
    "evaluation": "evaluate()",
    "checkpointing": "save_checkpoint()",
    "other": "log_statistics()",
    "average": "update_average()",
}
SECOND = """
    if i % {period} == {phase}:
        with timed("forward"): loss = loss + critic(model(x)).square().mean()
"""
STAGES = {
    "forward": ("forward", "loss"),
    "backward": ("zero_grad", "backward"),
    "optimizer": ("optimizer",),
    "update": ("forward", "loss", "backward", "optimizer", "other"),
    "evaluation": ("evaluation",),
    "checkpointing": ("checkpointing",),
    "other": ("other",),
    "average": ("other",),
}


class Loop(NamedTuple):
    """A script, and what its rare part is timed as ("second" is timed with the passes)."""

    framework: str
    rare: str
    period: int
    phase: int
    text: str


def generated(seed: int) -> Loop:
    """One loop; a third of them of JAX."""
    chance = random.Random(seed)
    framework = "jax" if seed % 3 == 2 else "torch"
    kinds = ["evaluation", "checkpointing"] + ["other", "average", "second"] * (framework == "torch")
    rare, period = chance.choice(kinds), chance.randint(2, 8)
    phase = chance.randrange(period)
    values = {
        "depth": chance.randint(2, 6),
        "width": chance.choice([256, 384, 512]),
        "batch": chance.choice([128, 256, 512]),
        "times": chance.choice([2, 8, 30]),
        "files": chance.choice([1, 3]),
        "optimizer": chance.choice(["SGD", "Adam", "AdamW"]),
        "steps": 10 + RECORDED + AFTER,
        "second": SECOND.format(period=period, phase=phase) if rare == "second" else "",
        "rare": ""
        if rare == "second"
        else f'    if i % {period} == {phase}:\n        with timed("{rare}"): {RARE[rare]}',
    }
    text = COMMON + (TORCH if framework == "torch" else JAX).format(**values)
    return Loop(framework, rare, period, phase, text)


class Part(NamedTuple):
    """Milliseconds per step of a part, by hand and in the report."""

    name: str
    truth: float
    found: float
    spread: float  # of `found`, as the report prints it

    @property
    def error(self) -> float:
        """As a share of the truth."""
        return self.found / self.truth - 1


def measured(loop: Loop, folder: Path) -> list[Part]:
    """Record a loop once."""
    script, times, capture = folder / "train.py", folder / "times.json", folder / "out.stepscope"
    script.write_text(loop.text)
    command = [sys.executable, "-m", "stepscope", "run", "--overwrite", "--steps", str(RECORDED)]
    done = subprocess.run(
        [*command, "-o", str(capture), str(script), str(times)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    trace = stepscope.open(capture, cache=False)
    return list(parts(loop, json.loads(times.read_text()), trace))


def unrecorded(loop: Loop, spent: list[dict[str, float]], name: str, is_rare: list[bool]) -> float:
    """Mean over steps of what a part takes in the unrecorded ones that do the same, ms."""
    after = range(len(spent) - LAST, len(spent))
    usual = {
        rare: median(spent[i].get(name, 0.0) for i in after if (i % loop.period == loop.phase) == rare)
        for rare in (False, True)
    }
    return mean(usual[rare] for rare in is_rare)


def parts(loop: Loop, spent: list[dict[str, float]], trace: stepscope.Trace) -> Iterator[Part]:
    """Each part that takes enough of the step."""
    selected = SelectedSteps(trace, trace.metadata.ranks[0], None)
    steps, places = selected.steps["step"], places_of(selected)
    later = loop.rare != "second"  # a step of PyTorch ends with the update
    is_rare = [(int(step) - later) % loop.period == loop.phase for step in steps]
    names = sorted({name for one in spent for name in one})
    if loop.framework == "jax":
        truth = {name: mean(spent[i].get(name, 0.0) for i in steps.tolist()) for name in names}
    else:
        truth = {name: unrecorded(loop, spent, name, is_rare) for name in names}
    runs = trace["stages"]
    stage, cpu_ns = runs.text("stage"), runs["cpu_ns"]
    for name, ms in truth.items():
        if ms >= LEAST * sum(truth.values()):
            is_part = name in RARE and loop.framework == "torch"
            rows = stage.mask(*STAGES[name], *["other"] * is_part)
            found = np.array([cpu_ns[rows & (runs["step"] == step)].sum() for step in steps]) / 1e6
            if is_part:
                found = np.where(is_rare, found - np.median(found[~np.array(is_rare)]), 0)
            spread = sum(place.error_ms for place in places if place.stage in STAGES[name])
            yield Part(name, ms, float(found.mean()), spread)


def main() -> None:
    """Measure and print each part, and how many hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--framework", choices=["torch", "jax"], help="of which loops alone to run")
    options = parser.parse_args()
    held = stated = judged = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.loops):
            loop = generated(seed)
            if options.framework not in (None, loop.framework):
                continue
            for part in measured(loop, Path(folder)):
                holds = abs(part.error) <= ENOUGH
                says = not holds and abs(part.found - part.truth) <= part.spread
                judged, held, stated = judged + 1, held + holds, stated + says
                about = f"{seed:3} {loop.framework:5} {loop.rare:13} every {loop.period}, {part.name:13}"
                error = f"{part.truth:8.2f} ms {part.error:+7.1%}"
                print(about, error, "" if holds else f"± {part.spread:.2f} ms" if says else "<<", flush=True)
    print(f"{held} of {judged} parts hold, {stated} more within the spread that the report prints")


if __name__ == "__main__":
    main()
