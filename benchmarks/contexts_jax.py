"""The cost of collecting the contexts of a JAX program: the example with and without.

    python benchmarks/contexts_jax.py [--rounds N] [--steps N] [--batch N] [--iterations N]

Time: steps of one process, taken in turn so that a busy machine slows all alike; CPU time and
elapsed time of a step that reads its loss (`float(loss)`), and their ratios to steps with no tool
in the same round: median, quartiles, and a 95 % confidence interval of the median. `own` is the
collector's time as it measures it, in percent of the step.

    no tool        twice: what the two differ by is the noise
    no windows     as `--contexts`, without windows of XLA's profiler
    --contexts     as `stepscope run --contexts` collects them; the window in which a run begins
                   is over

Calls: of the smallest compiled function, with `float(x)` of its result too, with and without.

Memory: growth of the process between iteration 200 and N of a small loop, in its own process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stepscope.record.contexts import native_build as build
from stepscope.record.contexts.context_options import ContextOptions
from stepscope.record.contexts.native_collector import NativeCollector

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_jax import init, load_batch, update

CALLS, GOES = 3_000, 15
WARM_UP_ITERATIONS = 200
FIRST_WINDOWS = 1


class Cost(NamedTuple):
    """Seconds of a step: CPU time, elapsed time, and the collector's own."""

    cpu: float
    elapsed: float
    own: float = 0.0


class Training:
    """The example's loop, a few steps at a time."""

    def __init__(self, batch: int) -> None:
        self.generator, self.batch = np.random.default_rng(0), batch
        self.params = init(jax.random.key(0))
        self.moments = jax.tree.map(jnp.zeros_like, self.params)

    def run(self, steps: int) -> Cost:
        """The mean step; all work is done at its end."""
        cpu, begun = time.process_time(), time.perf_counter()
        for _ in range(steps):
            batch = load_batch(self.generator, self.batch)
            self.params, self.moments, loss = update(self.params, self.moments, *batch, 0.03)
            float(loss)
        return Cost((time.process_time() - cpu) / steps, (time.perf_counter() - begun) / steps)


@contextmanager
def collecting(windows: bool = True) -> Iterator[NativeCollector]:
    collector = NativeCollector(build.load(None), ContextOptions(device=windows), None)
    collector.start()
    collector.follow_jax()
    yield collector
    collector.stop()
    collector.release()


def own_s(collector: NativeCollector) -> float:
    return json.loads(collector.content(False) or b"")["totals"]["collector_ns"] / 1e9


def with_contexts(training: Training, steps: int, windows: bool = True) -> Cost:
    with collecting(windows) as collector:
        training.run(2)  # the contexts have been met
        while windows and len(collector.members()) < FIRST_WINDOWS:
            training.run(1)
        before = own_s(collector)
        cost = training.run(steps)
        return cost._replace(own=(own_s(collector) - before) / steps)


VARIANTS: dict[str, Callable[[Training, int], Cost]] = {
    "no tool": Training.run,
    "no tool again": Training.run,
    "no windows": partial(with_contexts, windows=False),
    "--contexts": with_contexts,
}


def interleave(training: Training, rounds: int, steps: int) -> dict[str, list[Cost]]:
    names = list(VARIANTS)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            cost = VARIANTS[name](training, steps)
            if turn >= 0:
                costs[name].append(cost)
    return costs


def show(costs: dict[str, list[Cost]]) -> None:
    plain = costs["no tool"]
    print(f"{'':16}{'ms/step':>9}   {'CPU time, ratio':44}{'elapsed, ratio':44}own, %")
    for name, measured in costs.items():
        pairs = list(zip(measured, plain, strict=True))
        cpu = spread([cost.cpu / base.cpu for cost, base in pairs])
        elapsed = spread([cost.elapsed / base.elapsed for cost, base in pairs])
        step = 1e3 * statistics.median(cost.elapsed for cost in measured)
        own = statistics.median(100 * cost.own / cost.elapsed for cost in measured)
        print(f"{name:16}{step:9.2f}   {cpu:44}{elapsed:44}{own:.2f}")


def spread(ratios: list[float]) -> str:
    """Median, quartiles, and the 95 % confidence interval of the median."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    least, most = interval_of_median(ratios)
    return f"{middle:.3f} ({low:.3f} to {high:.3f}), 95 % {least:.3f} to {most:.3f}"


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """The order statistics that hold the median with a confidence of at least 95 %.

    Each value is below the median as often as above it, whatever the distribution. From fewer than
    six values there is no such interval, and the least and the largest are returned.

    Source: H. A. David and H. N. Nagaraja, "Order Statistics", section 7.1.
    """
    ordered, below, place = sorted(values), 0.0, 0
    while (below := below + math.comb(len(ordered), place) / 2 ** len(ordered)) <= 0.025:
        place += 1
    place = max(place - 1, 0)
    return ordered[place], ordered[-1 - place]


def least_us(call: Callable[[], object]) -> float:
    """What a call takes, the least of several goes, µs."""
    times = []
    for _ in range(GOES):
        begun = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter_ns() - begun) / CALLS)
    return min(times) / 1e3


def calls() -> None:
    function, x = jax.jit(lambda x: x), jnp.ones(())
    kinds: dict[str, Callable[[], object]] = {
        "call of a compiled function": lambda: function(x),
        "call and float(x)": lambda: float(function(x)),
    }
    for what, call in kinds.items():
        call()
        plain = least_us(call)
        with collecting():
            print(f"{what}: {plain:.2f} µs, {least_us(call):.2f} µs with contexts")


def grow(variant: str, iterations: int) -> dict[str, float]:
    """Iterate with one tool; the growth of the process after warm-up."""
    step = jax.jit(lambda w, x: (w - 0.1 * jnp.tanh(x @ w), w.mean()))
    w, x = jnp.ones((32, 32)), np.ones((32, 32), np.float32)
    tool = collecting() if variant == "--contexts" else None
    if tool:
        tool.__enter__()

    def iterate(times: int) -> None:
        nonlocal w
        for _ in range(times):
            w, loss = step(w, jnp.asarray(x))
            float(loss)

    iterate(WARM_UP_ITERATIONS)
    gc.collect()
    warm = resident_mib()
    iterate(iterations - WARM_UP_ITERATIONS)
    gc.collect()
    return {"iterations": iterations, "growth_mib": resident_mib() - warm}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(iterations: int) -> None:
    for variant in ("no tool", "--contexts"):
        command = [sys.executable, __file__, f"--grow={variant}", "--iterations", str(iterations)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        print(f"{variant:16}{row['growth_mib']:9.1f} MiB over {row['iterations']} iterations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--only", choices=["time", "calls", "memory"])
    parser.add_argument("--grow", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow:
        print(json.dumps(grow(arguments.grow, arguments.iterations)))
        return
    if arguments.only in (None, "time"):
        show(interleave(Training(arguments.batch), arguments.rounds, arguments.steps))
    if arguments.only in (None, "calls"):
        calls()
    if arguments.only in (None, "memory"):
        memory(arguments.iterations)


if __name__ == "__main__":
    main()
