"""A whole training step as one CUDA graph.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.gpu.training import Training, on_device

_SETTLING_STEPS = 3


def graphed(training: Training) -> Callable[[], object]:
    """What replays the step of `training`, after copying its batch to where the graph reads it."""
    for group in training.optimizer.param_groups:
        group["capturable"] = True
    static = on_device(training.host, training.device)
    _settle(training, static)
    training.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.train_on(static)

    def replay() -> None:
        for name, tensor in training.host.items():
            static[name].copy_(tensor, non_blocking=True)
        graph.replay()

    return replay


def _settle(training: Training, static: dict[str, torch.Tensor]) -> None:
    """Steps outside the graph, on the side stream that capturing wants them on."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_SETTLING_STEPS):
            training.train_on(static)
    torch.cuda.current_stream().wait_stream(stream)
