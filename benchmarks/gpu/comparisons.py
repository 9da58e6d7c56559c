"""What stepscope finds in a device's captures and snapshots, next to what was measured there.

`accuracy.py` makes tables of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.gpu.predictions import measured

import stepscope
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.models.memory import memory_facts
from stepscope.trace.trace import Trace

# The hand-set timer of forward also holds the loss.
_STAGES = {
    "transfer": ("transfer",),
    "zero_grad": ("zero_grad",),
    "forward": ("forward", "loss"),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
}


@dataclass(frozen=True)
class StageTimes:
    """A stage of a model's step, ms.

    Attributes:
        model: its name.
        stage: its name.
        cpu: by a hand-set timer in steps that nothing watched.
        corrected: in the capture, without the cost of recording.
        recorded: in the capture, as recorded.
        device: by CUDA events, from the end of the stage before; None without a GPU.
        device_busy: in the capture, the device's busy time.
    """

    model: str
    stage: str
    cpu: float
    corrected: float
    recorded: float
    device: float | None
    device_busy: float


def stage_times(device: Path) -> Iterator[StageTimes]:
    """Each stage of each model with both timers and a plain capture."""
    for model, truth in measured(device, "stages").items():
        path = device / "captures" / f"{model}.plain.stepscope"
        if not path.exists():
            continue
        corrected = stepscope.open(path, cache=False)
        recorded = stepscope.open(path, cache=False, as_recorded=True)
        for stage, names in _STAGES.items():
            on_device = truth["device_ms"].get(stage)
            yield StageTimes(
                model=model,
                stage=stage,
                cpu=truth["cpu_ms"][stage]["median"],
                corrected=_median_ms(corrected, names, "cpu_ns"),
                recorded=_median_ms(recorded, names, "cpu_ns"),
                device=on_device and on_device["median"],
                device_busy=_median_ms(corrected, names, "device_ns"),
            )


def _median_ms(trace: Trace, names: tuple[str, ...], column: str) -> float:
    """Median over the steps of the time in some stages, ms."""
    runs = trace["stages"]
    chosen = runs.text("stage").mask(*names)
    steps = trace["steps"]["step"]
    of_steps = [runs[column][chosen & (runs["step"] == step)].sum() for step in steps]
    return 1e-6 * float(np.median(of_steps)) if of_steps else 0.0


def jax_steps(device: Path) -> Iterator[tuple[str, float, float, float]]:
    """Of each JAX capture its name, and its step: unwatched, after recording, recorded, ms."""
    for model, one in measured(device, "jax_steps").items():
        trace = stepscope.open(device / one["file"], cache=False)
        recorded = 1e-6 * statistics.median(step_lengths(trace["steps"]).tolist())
        yield model, one["step_ms"]["median"], one["after_recording_ms"], recorded


def snapshots(device: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Of each memory snapshot its name, and its peaks: allocated by PyTorch and by us, reserved.

    Each peak is in bytes: PyTorch's counter first, then what the history of the snapshot gives.
    """
    for model, one in measured(device, "snapshot").items():
        facts = memory_facts(stepscope.open(device / one["file"], cache=False))[0]
        allocated, reserved = one["peak_allocated_bytes"], one["peak_reserved_bytes"]
        yield model, allocated, facts.peak_bytes, reserved, facts.reserved_peak_bytes or 0
