"""The parts of a run: `PARTS`, in the order in which they are taken.

A part is a module here with one function, which gives each measurement as a name and what to call.
It is asked for the next only after the one before was taken, whose result is in `done` by then.

    def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Measurement = tuple[str, Callable[[], Json]]


@dataclass(frozen=True)
class Part:
    """What a part measures, and how.

    Attributes:
        about: in words.
        minutes: what it may take on a GPU.
        apart: each measurement on a GPU runs in a separate process.
    """

    about: str
    minutes: float
    apart: bool = False


# What shows most comes first; what may take the process down comes late.
PARTS = {
    "models": Part("every model trains: parameters, memory, losses of a few steps", 2),
    "captures": Part("stepscope captures: plain, with memory, with Python stacks", 7),
    "annotation": Part("how much of each capture stepscope finds stages and modules for", 3),
    "stages": Part("stages of unwatched steps by hand-set timers, on the CPU and the device", 2),
    "precision": Part("step time and memory in FP32, TF32, bf16 and fp16", 4),
    "optimizers": Part("step time and memory with Adam for-loop, foreach and fused", 3),
    "overheads": Part("steps under nothing, torch.profiler, stepscope and Proton", 3),
    "layouts": Part("channels_last, activation checkpointing, CUDA graphs", 4),
    "loading": Part("step time with a data loader that keeps up and one that does not", 2),
    "batch_sizes": Part("step time and memory from small batches to the edge of memory", 5),
    "snapshot": Part("the allocator's history of two steps of one model", 1),
    "jax_steps": Part("a transformer in plain JAX: unwatched steps, and a capture", 3),
    "stalls": Part("what the instructions of hot kernels wait for, and what sampling costs", 3, apart=True),
    "compiled": Part("step time and memory under torch.compile", 8),
}

# Taken only where they are asked for by name.
ON_REQUEST = {"evidence": Part("fourteen minutes that decide what is open; can be cut anywhere", 14)}
EVERY = {**PARTS, **ON_REQUEST}
