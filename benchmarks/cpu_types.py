"""How fast a CPU multiplies and convolves in each type: what the rule `slow_fallback` relies on.

    python benchmarks/cpu_types.py

One thread, the best of five rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{torch.backends.cpu.get_cpu_capability()}, GFLOP/s")
    print("| type | product | linear layer | convolution |")
    print("|---|---:|---:|---:|")
    for kind in TYPES:
        print(f"| {str(kind).removeprefix('torch.')} | " + " | ".join(rates(kind)) + " |")


def rates(kind: torch.dtype) -> list[str]:
    """GFLOP/s of a product, a linear layer and a convolution."""
    rows, weights = torch.randn(256, 512).to(kind), torch.randn(512, 512).to(kind)
    images, filters = torch.randn(8, 32, 32, 32).to(kind), torch.randn(32, 32, 3, 3).to(kind)
    product, convolution = 2 * 256 * 512 * 512, 2 * 8 * 32 * 32 * 32 * 32 * 9
    return [
        f"{product / best_ns(lambda: rows @ weights):.1f}",
        f"{product / best_ns(lambda: functional.linear(rows, weights)):.1f}",
        f"{convolution / best_ns(lambda: functional.conv2d(images, filters, padding=1)):.1f}",
    ]


def best_ns(call: Callable[[], object]) -> int:
    times = []
    for _ in range(6):  # the first warms up
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return min(times[1:])


if __name__ == "__main__":
    main()
