"""Every model trains: the first thing to know on a machine that nobody has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import peak_memory
from benchmarks.gpu.training import Training

_STEPS = 3


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """A few steps of each model."""
    for model in MODELS:
        yield model, lambda model=model: train(model, setting)


def train(model: str, setting: Setting) -> Json:
    """Size, memory and the losses of a few steps on the same batch."""
    training = Training(Case(model), setting)
    losses = [training.step().item() for _ in range(_STEPS)]
    parameters = list(training.model.parameters())
    return {
        "samples": training.samples,
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "losses": losses,
        **(peak_memory() if setting.on_gpu else {}),
    }
