"""The cost of recording a JAX program: steps of the example with and without stepscope.

    python benchmarks/capture_jax.py [--rounds N] [--steps N]

Neighboring steps of one process, taken in turn so that a busy machine slows all alike; process CPU
time of a step, and its ratio to steps with no tool in the same round: median and quartiles.

    no tool        twice: what the two differ by is the noise
    waiting        the recorder that `stepscope run` attaches, its warm-up not over
    recording      while it records
    with --stack   the same with Python frames
    over           after it has recorded

And what calls cost: of the smallest compiled function while the recorder waits, and of a Python
function with --stack. And what recording one event costs, in programs with many: the difference of
recorded calls and calls that nothing records, which alternate, by the number of events.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from stepscope.read import read
from stepscope.record.jax.jax_recorder import JaxRecorder
from stepscope.record.jax.jax_window import JaxWindow
from stepscope.record.options import RecordOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_jax import init, load_batch, update

NEVER = 10**9
CALLS = 20_000
GOES, REPEATS = 25, 40


class Training:
    """The example's loop, a few steps at a time."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.params = init(jax.random.key(0))
        self.moments = jax.tree.map(jnp.zeros_like, self.params)

    def run(self, steps: int) -> float:
        """CPU time of a step, s, with all its work done."""
        begin = time.process_time()
        for _ in range(steps):
            batch = load_batch(self.generator, 32)
            self.params, self.moments, loss = update(self.params, self.moments, *batch, 0.03)
        loss.block_until_ready()
        return (time.process_time() - begin) / steps


def recorder(warmup: int, **options: bool) -> JaxRecorder:
    return JaxRecorder(RecordOptions(warmup=warmup, steps=NEVER, **options), *[lambda result: None] * 2)


def waiting(training: Training, steps: int) -> float:
    one = recorder(NEVER)
    try:
        return training.run(steps)
    finally:
        one.detach()


def recording(training: Training, steps: int, stack: bool = False) -> float:
    one = recorder(3, stack=stack)
    training.run(6)  # past the warm-up, into the window
    try:
        return training.run(steps)
    finally:
        one.close()


def call_ns(before: Callable[[], Callable[[], None]]) -> float:
    """What a call of the smallest function takes, the least of several goes, ns."""
    function, x = jax.jit(lambda x: x), jnp.ones(())
    function(x)
    after = before()
    times = []
    for _ in range(15):
        begin = time.perf_counter_ns()
        for _ in range(CALLS // 15):
            function(x)
        times.append((time.perf_counter_ns() - begin) / (CALLS // 15))
    after()
    return min(times)


def python_call_ns(stack: bool = False) -> float:
    """What a call of a Python function takes, recorded with --stack or not at all, ns."""

    def nothing() -> None:
        pass

    window = JaxWindow(RecordOptions(stack=stack), 0, None, run_in=0) if stack else None
    times = []
    for _ in range(15):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            nothing()
        times.append((time.perf_counter_ns() - begin) / CALLS)
    if window:
        window.close(drain=False)
    return min(times)


def programs() -> dict[str, Callable[[], object]]:
    """Programs with many events: one by one, on one thread, in a loop, in XLA's thread pool."""
    x, wide, weights = jnp.ones((16, 16)), jnp.ones((256, 512)), jnp.ones((512, 512)) / 512

    def eager() -> None:
        y = x
        for _ in range(30):
            y = y * 0.9
        y.block_until_ready()

    def repeated(w: jax.Array, times: int) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(lambda y: [y := jnp.tanh(y @ w) for _ in range(times)][-1])

    scanned = jax.jit(lambda y: jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), None), y, None, length=200)[0])
    small, pool = repeated(x, 100), repeated(weights, 20)
    return {
        "30 operations outside jit": eager,
        "100 small products": lambda: small(x).block_until_ready(),
        "the same in lax.scan": lambda: scanned(x).block_until_ready(),
        "20 products on all cores": lambda: pool(wide).block_until_ready(),
    }


def event_cost(call: Callable[[], object]) -> tuple[float, float]:
    """Events of a call, and what recording one of them costs, ns."""
    differences, events = [], 0.0
    for _ in range(GOES):
        plain = median_ns(call)
        window = JaxWindow(RecordOptions(), 0, None, run_in=0)
        differences.append(median_ns(call) - plain)
        window.close(drain=False)
        if not events:
            with tempfile.TemporaryDirectory() as folder:
                window.export(profile := Path(folder) / "events.xplane.pb")
                events = len(read(profile).events) / (REPEATS + 1)
    return events, statistics.median(differences) / events


def median_ns(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def attached() -> Callable[[], None]:
    one = recorder(NEVER)
    return one.detach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()

    training = Training()
    training.run(5)
    modes = {
        "no tool again": training.run,
        "waiting": lambda steps: waiting(training, steps),
        "recording": lambda steps: recording(training, steps),
        "with --stack": lambda steps: recording(training, steps, stack=True),
        "over": training.run,
    }
    ratios: dict[str, list[float]] = {name: [] for name in modes}
    plain = []
    for _ in range(args.rounds):
        plain.append(training.run(args.steps))
        for name, run in modes.items():
            ratios[name].append(run(args.steps) / plain[-1])
    print(f"no tool: {1000 * statistics.median(plain):.1f} ms of CPU time a step")
    for name, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:14} {middle:.3f} ({low:.3f} to {high:.3f})")
    without, with_hook = call_ns(lambda: lambda: None), call_ns(attached)
    plain_call, framed = python_call_ns(), python_call_ns(stack=True)
    print(f"a call of a Python function: {plain_call:.0f} ns, {framed:.0f} ns with --stack")
    print(f"a call: {without:.0f} ns, {with_hook:.0f} ns while the recorder waits")
    for name, call in programs().items():
        events, cost = event_cost(call)
        print(f"{name}: {cost:.0f} ns for each of {events:.0f} events")


if __name__ == "__main__":
    main()
