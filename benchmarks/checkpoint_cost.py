"""The CPU time that torch.utils.checkpoint takes itself, on this machine.

    python benchmarks/checkpoint_cost.py [--steps N]

Stacks of layers so small that nothing but calls takes time are trained as they are and
checkpointed, in turn. What the checkpointed step takes more than the plain one and another forward
(CPU time, the median of all steps) is fitted by a time for each call and one for each saved tensor.
"""

import argparse
from statistics import median
from time import process_time

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

LAYERS = {
    "Linear, ReLU": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (2, 4)),
    "Linear, LayerNorm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (2, 4)),
    "Conv2d, BatchNorm2d": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), (2, 4, 4, 4)),
}
DEPTHS = (1, 2, 4, 8, 16)
WARMUP = 20


def times(model: nn.Module, shape: tuple[int, ...], again: bool) -> tuple[float, float]:
    """Forward and backward of a step, us of CPU time."""
    x = torch.randn(shape, requires_grad=True)
    begin = process_time()
    y = (checkpoint(model, x, use_reentrant=False) if again else model(x)).sum()
    middle = process_time()
    y.backward()
    return (middle - begin) * 1e6, (process_time() - middle) * 1e6


def saved_tensors(model: nn.Module, shape: tuple[int, ...]) -> int:
    """How many tensors forward saves for backward."""
    saved = []
    with saved_tensors_hooks(saved.append, lambda _: None):
        model(torch.randn(shape, requires_grad=True))
    return len(saved)


def extra_us(model: nn.Module, shape: tuple[int, ...], steps: int) -> tuple[int, float]:
    """Saved tensors, and what checkpointing takes beyond another forward, us."""
    both = [(times(model, shape, False), times(model, shape, True)) for _ in range(WARMUP + steps)]
    extra = [sum(again) - sum(plain) - plain[0] for plain, again in both[WARMUP:]]
    return saved_tensors(model, shape), median(extra)


def main() -> None:
    """Print what each model takes more, and the fitted times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    points = []
    for name, (layer, shape) in LAYERS.items():
        for depth in DEPTHS:
            model = nn.Sequential(*(layer() for _ in range(depth)))
            points.append(extra_us(model, shape, steps))
            saved, extra = points[-1]
            print(f"{depth:3} times {name:20} {saved:4} saved tensors {extra:7.1f} us more")
    each, call = np.polyfit(*zip(*points, strict=True), 1)
    print(f"{call:.0f} us a call, {each:.1f} us a saved tensor")


if __name__ == "__main__":
    main()
