"""What the slow examples share: `--fixed`, the training loop, and how long a step takes."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch


def arguments(what: str | None) -> argparse.Namespace:
    """`--fixed` leaves the defect out; `--steps` says how long to train."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--fixed", action="store_true", help="the same without the defect")
    parser.add_argument("--steps", type=int, default=12)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # times of a busy machine vary less
    return parser.parse_args()


def device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def require_cuda() -> None:
    """End with one line and code 2 where there is no CUDA device."""
    if not torch.cuda.is_available():
        name = Path(sys.argv[0]).name
        print(f"{name}: expected a CUDA device, found none; its defect shows on one only",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)


def train(step: Callable[[Any], object], batches: Iterable[Any]) -> None:
    """Call `step` with each batch; print the median time of a step, and that of all."""
    times = []
    first = begin = time.perf_counter()
    for batch in batches:
        step(batch)
        now = time.perf_counter()
        times.append(now - begin)
        begin = now
    print(f"{1000 * statistics.median(times):.3f} ms a step, {begin - first:.3f} s in all")
