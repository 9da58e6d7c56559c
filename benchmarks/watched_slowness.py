"""Whether `stepscope watch` names what slows the steps of a run, of slowness planted at known steps.

    python benchmarks/watched_slowness.py [KIND...]        # a quarter of an hour for all of them
    python benchmarks/watched_slowness.py --healthy 20 --steps 5000    # ten minutes on an idle machine

Each kind is a script whose steps FIRST to LAST are slower than others by MORE_MS, and that reports
nothing of it. A kind is right if the bill has a stretch that begins within 20 steps of FIRST and has the
cause, and the line or the rank where there is one. `--healthy` counts runs of the script without
slowness, in six styles, for which the bill names any slow step that it does not put down to others.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stepscope.facts.slow_steps import CAUSES
from stepscope.facts.watched import Bill, bill_of, slow_rank
from stepscope.read.watched_run import WatchedRun, read_watched_run

FIRST, LAST, STEPS, MORE_MS, WITHIN = 200, 239, 400, 40, 20

TORCH = """
import gc, os, subprocess, sys, threading, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
now, steps, first, last, more = 0, {steps}, {first}, {last}, {more} / 1000
is_slow = lambda number: first <= number <= last
def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
def decode(number):
    {decode}
class Data(torch.utils.data.Dataset):
    def __len__(self): return steps
    def __getitem__(self, number):
        decode(number)
        return torch.randn(64)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    def forward(self, x):
        {forward}
        return self.layers(x).square().mean()
model = Net()
{setup}
optimizer = torch.optim.{optimizer}(model.parameters())
for now, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=1, num_workers={workers})):
    {loop}
    optimizer.zero_grad()
    loss = model(batch)
    {before}
    loss.backward()
    optimizer.step()
    busy({work})
    {after}
"""
JAX = """
import gc, os, subprocess, sys, time, jax, jax.numpy as jnp
steps, first, last, more = {steps}, {first}, {last}, {more} / 1000
is_slow = lambda number: first <= number <= last
def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
def decode(number):
    {decode}
    return jnp.ones(({batch}, 64))
@jax.jit
def step(weights, batch):
    return weights - 0.01 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)
weights = jnp.ones((64, 64))
{setup}
for now in range(steps):
    batch = decode(now)
    {loop}
    weights = step(weights, batch)
    weights.block_until_ready()
    busy({work})
"""
HEAP = "heap = [[] for _ in range(600_000)]"
OTHERS = CAUSES["queued"]
HOG = "[sys.executable, '-c', 'while True: pass']"
CORE = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
GLOO = """
import torch.distributed as dist
dist.init_process_group('gloo'); rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(model)
"""


@dataclass(frozen=True)
class Kind:
    """A script's pieces, and what the bill should say of it."""

    cause: str  # a pattern
    where: str = ""  # text of the line that is named, as it is in the script
    script: str = TORCH
    rank: int | None = None
    ranks: int = 1
    decode: str = "pass"
    forward: str = "pass"
    setup: str = ""
    loop: str = "pass"
    before: str = "pass"
    after: str = "pass"
    optimizer: str = "SGD"
    workers: int = 0
    batch: str = "8"
    work: str = "0.005"  # seconds of CPU time in each step


def when_slow(statement: str) -> str:
    return f"{statement} if is_slow(now) else None"


SLEEP = "time.sleep(more)"
KINDS = {
    "input": Kind("waiting for data", "time.sleep(more", decode="time.sleep(more * is_slow(number))"),
    "input of workers": Kind(
        "waiting for data", "time.sleep(2", decode="time.sleep(2 * more * is_slow(number))", workers=2
    ),
    "computing input": Kind(
        "preparing data in the training thread", "while time.thread", decode="busy(more * is_slow(number))"
    ),
    "computing in workers": Kind(
        "waiting for data", "while time.thread", decode="busy(2 * more * is_slow(number))", workers=1
    ),
    "garbage collection": Kind("garbage collection", setup=HEAP, after=when_slow("gc.collect()")),
    "another process": Kind(
        OTHERS,
        setup=f"{CORE}; others = []",
        loop=f"others += [subprocess.Popen({HOG}) for _ in range(4)] if now == first else []; "
        "[other.kill() for other in others if now == last]",
    ),
    "sleeping in the loop": Kind("waited", SLEEP, after=when_slow(SLEEP)),
    "a computation in the loop": Kind("more work", "sum(", loop=when_slow("sum(range(2_000_000))")),
    "a forward pass": Kind("waited", SLEEP, forward=when_slow(SLEEP)),
    "computing forwards": Kind("more work", "sum(", forward=when_slow("sum(range(2_000_000))")),
    "a backward pass": Kind(
        "backward", setup="next(model.parameters()).register_hook(lambda g: time.sleep(more * is_slow(now)))"
    ),
    "longer sequences": Kind(
        "backward|more work", loop=when_slow("exec('batch = batch.repeat(20_000, 1)', globals())")
    ),
    "writing to disk": Kind(
        "waited|more work",
        "os.fsync(",
        setup="log = open('log', 'wb', 0)",
        after=when_slow("[(log.write(bytes(1 << 16)), os.fsync(log.fileno())) for _ in range(10)]"),
    ),
    "a checkpoint each step": Kind(
        "checkpoints", "torch.save(", after=when_slow("torch.save(torch.zeros(1 << 24), 'checkpoint.pt')")
    ),
    "an evaluation each step": Kind(
        "evaluation",
        "no_grad",
        setup="def validate():\n    model.eval()\n    with torch.no_grad(): busy(more)\n    model.train()",
        after=when_slow("validate()"),
    ),
    "an optimizer": Kind(
        "optimizer|waited",
        setup="torch.optim.SGD.step = (lambda step: lambda *a: (time.sleep(more * is_slow(now)), step(*a)))"
        "(torch.optim.SGD.step)",
    ),
    "a lock": Kind(
        "waited",
        "lock.acquire",
        setup="lock = threading.Lock()\n"
        "def hold():\n    while now < steps - 1:\n        with lock: time.sleep(more * is_slow(now))\n"
        "        time.sleep(0.001)\n"
        "threading.Thread(target=hold, daemon=True).start()",
        loop="lock.acquire(); lock.release()",
    ),
    "a thread that holds the GIL": Kind(
        "for the GIL or for them",
        setup="def hold():\n    while now < steps - 1:\n"
        "        sum(range(20_000)) if is_slow(now) else time.sleep(0.001)\n"
        "threading.Thread(target=hold, daemon=True).start()",
    ),
    "more threads than cores": Kind(
        "for the GIL or for them|had the training|more work",
        setup="matrix = torch.randn(400, 400)\ndef work(): torch.set_num_threads(8); matrix @ matrix; "
        "torch.set_num_threads(1)",
        loop=when_slow("[work() for _ in range(12)]"),
    ),
    "JAX: input": Kind("waited", "time.sleep(more", JAX, decode="time.sleep(more * is_slow(number))"),
    "JAX: computing": Kind("more work", "sum(", JAX, loop="sum(range(2_000_000)) if is_slow(now) else 0"),
    "JAX: compilation": Kind(
        "compilation", "step(weights", JAX, batch="8 + max(number - first + 1, 0) * is_slow(number)"
    ),
    "JAX: garbage collection": Kind("garbage", "", JAX, setup=HEAP, loop=when_slow("gc.collect()")),
    "4 ranks: a slow rank": Kind(
        "waited", SLEEP, rank=2, ranks=4, setup=GLOO, loop=f"{SLEEP} if rank == 2 and is_slow(now) else None"
    ),
    "4 ranks: slow input": Kind(
        "waiting for data", "time.sleep(more", rank=1, ranks=4, setup=GLOO,
        decode="time.sleep(more * is_slow(number) * (rank == 1))",
    ),
    "4 ranks: garbage collection": Kind(
        "garbage", "", rank=3, ranks=4, setup=f"{GLOO}{HEAP}",
        loop="gc.collect() if rank == 3 and is_slow(now) else None",
    ),
    "4 ranks: a slow all-reduce": Kind(
        "waiting in collectives|backward", "", ranks=4, setup=GLOO,
        after=when_slow("[dist.all_reduce(torch.zeros(1 << 20)) for _ in range(4)]"),
    ),
}  # fmt: skip
HEALTHY = [
    Kind("", work="0.002"),
    Kind("", work="0.001", workers=2, optimizer="AdamW"),
    Kind("", script=JAX, work="0.002"),
    Kind("", work="0.0005 * (1 + torch.rand(()).item() ** 4 * 5)"),  # sequences of any length
    Kind("", work="0.002 if now % 4 == 3 else 0.0005"),  # gradients of four batches, and an update
    Kind(
        "", work="0.001", loop="[busy(0.0001) for _ in range(9)]",
        forward="torch.randn(100, 100) @ torch.randn(100, 100)",
        after="torch.save(model.state_dict(), 'checkpoint.pt') if now % 500 == 499 else None",
    ),
]  # fmt: skip


def watched(kind: Kind, folder: Path, steps: int = STEPS, *, is_slow: bool = True) -> list[WatchedRun]:
    """Run the script of a kind in a folder; the run of each rank."""
    pieces = {name: value for name, value in vars(kind).items() if isinstance(value, str | int)}
    first = FIRST if is_slow else steps
    text = kind.script.format(steps=steps, first=first, last=LAST, more=MORE_MS, **pieces)
    (folder / "train.py").write_text(text)
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29877", "WORLD_SIZE": str(kind.ranks)}
    environment = {**os.environ, "STEPSCOPE_REQUESTS": f"{folder}/requests", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "stepscope", "watch", "train.py"],
            cwd=folder,
            env={**environment, **({**own, "RANK": str(rank)} if kind.ranks > 1 else {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(kind.ranks)
    ]
    assert [process.wait() for process in processes] == [0] * kind.ranks
    return sorted(map(read_watched_run, folder.rglob("*.watch")), key=lambda run: run.facts.rank)


def is_named(kind: Kind, runs: list[WatchedRun], text: str) -> tuple[bool, str]:
    """Whether the bill has the cause, the line and the rank of a kind; and what it says."""
    bill = bill_of(runs[kind.rank or 0])
    said = [
        (steps.cause, steps.where)
        for steps in bill.slow
        if abs(steps.first - FIRST) <= WITHIN and steps.count > 1 and steps.last <= LAST + WITHIN
    ] + [(loss.cause, loss.where) for loss in bill.losses if loss.cause in ("evaluation", "checkpoints")]
    right = any(re.search(kind.cause, cause) and has_line(kind.where, where, text) for cause, where in said)
    slow = slow_rank(runs)
    if kind.rank is not None:
        right = right and slow is not None and slow.rank == kind.rank and abs(slow.first - FIRST) <= WITHIN
    return right, f"{said}{f' rank {slow.rank} from {slow.first}' if slow else ''}"


def has_line(expected: str, where: str, text: str) -> bool:
    """Whether a place is at a line of the script with this text."""
    lines = [text.splitlines()[int(number) - 1] for number in re.findall(r":(\d+)", where)]
    return not expected or any(expected in line for line in lines)


def slow_of(bill: Bill) -> str:
    return "; ".join(f"steps {s.first} to {s.last}: {s.cause} {s.ratio:.3g}" for s in bill.slow)


def main() -> None:
    """Print what is said of each kind, and how many are right; or of healthy runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--healthy", type=int, default=0, metavar="N")
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()
    rights = []
    for number in range(arguments.healthy):
        with tempfile.TemporaryDirectory() as folder:
            (run,) = watched(HEALTHY[number % len(HEALTHY)], Path(folder), arguments.steps, is_slow=False)
            bill = bill_of(run)
            rights.append(all(slow.cause == OTHERS for slow in bill.slow))
            print(f"healthy run {number}: {slow_of(bill) or 'nothing slow'}", flush=True)
    for name in [] if arguments.healthy else arguments.kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            runs = watched(KINDS[name], Path(folder))
            is_right, said = is_named(KINDS[name], runs, (Path(folder) / "train.py").read_text())
            rights.append(is_right)
            print(f"{'right' if is_right else 'WRONG'}: {name}: {said}", flush=True)
    print(f"{sum(rights)} of {len(rights)} right")


if __name__ == "__main__":
    main()
