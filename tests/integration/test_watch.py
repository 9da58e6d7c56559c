"""`stepscope watch` on real scripts, in forks of a process that has torch imported."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from warm_python import JAX, WarmRun, run_warm

from stepscope.facts.watched import bill_of
from stepscope.read.watched_run import read_watched_run
from stepscope.record.watch.requests import ask_to_record, recorded, watched_runs

WATCH = [sys.executable, "-c", "from stepscope.faces.terminal.run import watch; watch()"]
LONGEST_S = 60
Answer = TypeVar("Answer")

TRAINING = """
import gc, os, random, signal, sys, threading, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.freeze()
def train(steps, pause=0.0):
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
def about():
    loss = float(model.weight.detach().sum())
    print(loss, torch.rand(1).item(), random.getstate()[0], [t.name for t in threading.enumerate()])
    print([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)], sys.excepthook)
    print(sys.argv, __name__, sys.gettrace(), sys.getprofile(), threading.active_count(), flush=True)
"""
ENDS = {
    "returns": "",
    "exits": "sys.exit(3)",
    "fails": "raise ValueError('wrong')",
    "is killed": "train(20, 0.02); os.kill(os.getpid(), 9)",
    "replaces functions": """
import builtins, io, json
for module in (builtins, io, json, os):
    for name in {"open", "dumps", "getpid", "stat", "scandir", "listdir", "read"} & vars(module).keys():
        setattr(module, name, lambda *words, name=name: print("called", name))
train(60, 0.02)  # longer than samples of lines are waited for
""",
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.setenv("STEPSCOPE_REQUESTS", str(tmp_path / "requests"))

    def write(text: str) -> Path:
        (tmp_path / "train.py").write_text(text)
        return tmp_path

    return write


def until(ask: Callable[[], Answer | None]) -> Answer:
    end = time.monotonic() + LONGEST_S
    while (answer := ask()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer


@pytest.mark.parametrize("end", ENDS)
def test_the_program_does_not_notice(script: Callable[[str], Path], end: str) -> None:
    folder = script(f"{TRAINING}train(50)\nabout()\n{ENDS[end]}")
    plain = run_warm([sys.executable, "train.py", "--lr", "1"], folder)
    watched = run_warm([*WATCH, "train.py", "--lr", "1"], folder)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    own = "".join(line for line in watched.stderr.splitlines(True) if not line.startswith("stepscope: "))
    assert own.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    run = read_watched_run(folder / "train.watch")
    assert len(run.steps) >= 49  # without the first
    assert run.facts.outcome == ("raised" if end == "fails" else "" if end == "is killed" else "ended")
    assert list((folder / "requests").glob("*.record*")) == []


@pytest.mark.full(every=50)
@pytest.mark.parametrize("number", range(50))
def test_after_a_kill_at_a_random_moment_the_file_opens(script: Callable[[str], Path], number: int) -> None:
    delay_s = random.Random(number).uniform(0.01, 0.5)
    killed = f"signal.setitimer(signal.ITIMER_REAL, {delay_s}); train(10**9)"
    folder = script(f"{TRAINING}train(2)\n{killed}")
    done = run_warm([*WATCH, "train.py"], folder)
    assert done.returncode == -signal.SIGALRM
    steps = read_watched_run(folder / "train.watch").steps["step"].tolist()
    assert steps == [*range(len(steps))]


def test_steps_are_recorded_on_demand(script: Callable[[str], Path]) -> None:
    folder = script(f"{TRAINING}while not os.path.exists('stop'): train(1, 0.005)\nabout()")
    running = WarmRun([*WATCH, "train.py"], folder)
    pid = until(lambda: next(iter(watched_runs()), None))
    until(lambda: len(read_watched_run(watched_runs()[pid]).steps) or None)
    ask_to_record(pid, 2)
    answer: dict[str, Any] = until(lambda: recorded(pid))
    (folder / "stop").touch()
    done = running.wait()
    assert done.returncode == 0, done.stderr
    assert "['MainThread']" in done.stdout
    assert answer["message"] == "recorded 2 steps"
    assert Path(answer["file"]).parent == folder
    assert Path(answer["file"]).is_file()
    assert watched_runs() == {}


def test_slow_steps_and_losses_of_a_script(script: Callable[[str], Path]) -> None:
    folder = script(
        TRAINING
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 200
    def __getitem__(self, index):
        time.sleep(0.15 if 100 <= index < 120 else 0.001)
        return index
for number, _ in enumerate(torch.utils.data.DataLoader(Data(), num_workers=1)):
    train(1)
    if number % 50 == 49:
        torch.save(model.state_dict(), "checkpoint.pt")
raise MemoryError("DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes")
"""
    )
    done = run_warm([*WATCH, "train.py"], folder)
    assert done.returncode == 1
    assert "stepscope: out of memory on cpu" in done.stderr
    bill = bill_of(read_watched_run(folder / "train.watch"))
    slow = next(slow for slow in bill.slow if slow.first <= 110 <= slow.last)
    # Other programs may slow a few steps next to them, too.
    assert (slow.first, slow.last) == (pytest.approx(99, abs=10), pytest.approx(118, abs=10))
    assert slow.cause == "waiting for data"
    assert slow.cause_ms == pytest.approx(149, rel=0.5)
    if sys.version_info < (3, 14):  # of which no lines are sampled
        assert slow.where == "Data.__getitem__ at train.py:23 (worker)"
    losses = {loss.cause: loss for loss in bill.losses}
    assert losses["data loaders starting their workers"].where == "once"
    assert losses["checkpoints"].where == "<module> at train.py:28, 4 times"
    assert losses["waiting for data"].lost_s >= 0.15 * 20
    assert "kept from step to step: weights 80 bytes" in bill.facts.out_of_memory


def test_steps_of_jax(script: Callable[[str], Path]) -> None:
    folder = script(
        """
import jax, jax.numpy as jnp
@jax.jit
def step(weights, batch):
    return weights - 0.1 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)
import numpy as np
weights = jnp.ones((4, 4))
for number in range(60):
    weights = step(weights, jnp.ones((2 if number < 40 else 3, 4)))
    if number % 20 == 10:
        np.savez("weights.npz", weights)
print(float(weights.sum()))
"""
    )
    done = run_warm([*WATCH, "train.py"], folder, modules=JAX)
    assert done.returncode == 0, done.stderr
    run = read_watched_run(folder / "train.watch")
    assert 50 <= len(run.steps) < 60
    compiled = [place.line for place in run.facts.places if place.kind == "compile" and place.line]
    assert 9 in compiled
    [saved] = [place for place in run.facts.places if place.kind == "checkpoint"]
    assert (saved.line, saved.count) == (11, 3)
    assert (run.steps["checkpoint"] > 0).sum() == 3


def test_a_file_of_somebody_else_is_not_overwritten(script: Callable[[str], Path]) -> None:
    folder = script("print('ran')")
    (folder / "train.watch").write_text("mine")
    done = run_warm([*WATCH, "train.py"], folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert (folder / "train.watch").read_text() == "mine"


@pytest.mark.parametrize("end", ["returns", "fails"])
def test_a_block_is_watched(script: Callable[[str], Path], end: str) -> None:
    block = f"with stepscope.watch('block.watch') as watched:\n    train(9)\n    {ENDS[end] or 'pass'}\n"
    folder = script(f"import stepscope\n{TRAINING}train(3)\n{block}train(5)\nprint(watched.path.name)")
    done = run_warm([sys.executable, "train.py"], folder)
    run = read_watched_run(folder / "block.watch")
    assert (len(run.steps), run.facts.outcome) == (8, "raised" if end == "fails" else "ended")
    assert (done.stdout, done.stderr.count("stepscope")) == ("" if end == "fails" else "block.watch\n", 0)


AUTOLOADED = f"import os\nfrom stepscope.autoload import autoload\nautoload()\n{TRAINING}"


@pytest.mark.parametrize(
    ("environment", "text", "files"),
    [
        ({}, "train(9)", {"job.watch": 8}),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "train(9)", {"job/rank1.watch": 8}),
        # A rank inherits what its launcher set; a process that a rank starts has that of the rank, too.
        ({"RANK": "1", "WORLD_SIZE": "2", "_OWNER_": "1"}, "train(9)", {"job/rank1.watch": 8}),
        ({"RANK": "1", "WORLD_SIZE": "2", "_OWNER_1": "1"}, "train(9)", {}),
        ({}, "pass", {}),  # a launcher
    ],
)
def test_a_variable_watches_each_rank(
    script: Callable[[str], Path], environment: dict[str, str], text: str, files: dict[str, int]
) -> None:
    folder = script(AUTOLOADED + text)
    own = {("STEPSCOPE_WATCH" if name[0] == "_" else "") + name: text for name, text in environment.items()}
    everything = {**os.environ, "STEPSCOPE_WATCH": "job.watch", **own}
    done = run_warm([sys.executable, "train.py"], folder, env=everything)
    assert (done.returncode, done.stderr) == (0, "")
    written = {str(path.relative_to(folder)): path for path in folder.rglob("*.watch")}
    assert {name: len(read_watched_run(path).steps) for name, path in written.items()} == files


def test_a_worker_of_ray_has_its_own_file_whoever_started_ray(script: Callable[[str], Path]) -> None:
    titled = "import stepscope.record.api as api\napi._is_worker_of_ray = lambda: True\n"
    folder = script(f"{titled}{AUTOLOADED}train(9)\nprint(os.getpid())")
    started = {**os.environ, "STEPSCOPE_WATCH": "job.watch", "STEPSCOPE_WATCH_OWNER_": "1"}
    done = run_warm([sys.executable, "train.py"], folder, env=started)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read_watched_run(folder / f"job-{done.stdout.strip()}.watch").steps) == 8
