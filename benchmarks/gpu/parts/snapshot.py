"""PyTorch's own record of every allocation of two steps, to open at pytorch.org/memory_viz."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import peak_memory
from benchmarks.gpu.training import Training

_STEPS = 2


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """One model: its history holds the kinds of allocation that all have."""
    for model in setting.of(["resnet50"]):
        yield model, partial(snapshot, model, setting)


def snapshot(model: str, setting: Setting) -> Json:
    """Write the snapshot next to the results; return a summary."""
    setting.need_gpu("a snapshot of the caching allocator")
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    try:
        training = Training(Case(model), setting)
        for _ in range(_STEPS):
            training.step()
        history = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    path = setting.out / f"{model}.snapshot.pickle.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    return {**peak_memory(), **_kept(history, path)}


def _kept(history: Json, path: Path) -> Json:
    path.write_bytes(gzip.compress(pickle.dumps(history), 9))
    segments = history["segments"]
    return {
        "file": path.name,
        "file_bytes": path.stat().st_size,
        "segments": len(segments),
        "reserved_bytes": sum(segment["total_size"] for segment in segments),
        "allocated_bytes": sum(segment["allocated_size"] for segment in segments),
        "events": sum(len(trace) for trace in history["device_traces"]),
    }
