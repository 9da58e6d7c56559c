"""Threads that do to the interpreter's frames whatever can be done to them, in measured shares.

python -m stepscope run --contexts --sample 1000 benchmarks/sampling_stress_entry.py SECONDS [TRUTH]

Each kind of work runs until it has had its share of its thread's CPU time; what it had goes to the
file TRUTH as {"cpu": {kind: seconds}, "real": {kind: seconds}}.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

THREADS = 3
QUANTUM_S = 0.004
cpu: Counter[str] = Counter()
real: Counter[str] = Counter()
lock = threading.Lock()


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def descend(depth: int) -> int:
    return descend(depth - 1) if depth else 0


def recurse(until: float) -> None:
    while time.thread_time() < until:
        fibonacci(10)
        descend(200)


def numbers(n: int) -> Iterator[int]:
    if n:
        yield n
        yield from numbers(n - 1)


def generate(until: float) -> None:
    while time.thread_time() < until:
        sum(numbers(20))
        unfinished = [numbers(5) for _ in range(20)]
        for one in unfinished:
            next(one)


def fail(depth: int) -> None:
    if not depth:
        raise ValueError("expected")
    try:
        fail(depth - 1)
    finally:
        depth += 1


def throw(until: float) -> None:
    while time.thread_time() < until:
        for depth in range(12):
            try:
                fail(depth)
            except ValueError as error:
                del error


def compile_new(until: float) -> None:
    while time.thread_time() < until:
        names: dict[str, Callable[[int], int]] = {}
        number = time.perf_counter_ns()
        source = f"def f{number}(n):\n    return n and f{number}(n - 1)\n"
        exec(compile(source, f"<made {number % 1000}>", "exec"), names)
        names[f"f{number}"](20)


def compute(until: float) -> None:
    while time.thread_time() < until:
        torch.sum(torch.ones(400))


WORK = {recurse: 3, generate: 2, throw: 2, compile_new: 1, compute: 2}


def take_turns(until: float) -> None:
    torch.ones(1)  # threads are sampled from their first operator on
    while time.monotonic() < until:
        for work, weight in WORK.items():
            began_cpu, began_real = time.thread_time(), time.perf_counter()
            work(began_cpu + QUANTUM_S * weight)
            with lock:
                cpu[work.__name__] += time.thread_time() - began_cpu
                real[work.__name__] += time.perf_counter() - began_real


def main() -> None:
    until = time.monotonic() + float(sys.argv[1])
    threads = [threading.Thread(target=take_turns, args=(until,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        short = [threading.Thread(target=compute, args=(0.0001,)) for _ in range(4)]
        for thread in short:
            thread.start()
        for thread in short:
            thread.join()
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps({"cpu": cpu, "real": real}))


if __name__ == "__main__":
    main()
