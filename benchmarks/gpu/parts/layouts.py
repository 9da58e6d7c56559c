"""Variants of the same FP32 or bf16 step, each compared with the normal step just before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.truth import truth


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """What each model allows of channels_last, checkpointing and CUDA graphs."""
    for model in setting.of(MODELS):
        for name, case in cases(model).items():
            yield f"{model}/{name}", partial(truth, case, setting)
        yield f"{model}/CUDA graph", partial(truth, Case(model), setting, as_graph=True)


def cases(model: str) -> dict[str, Case]:
    """The cases of a model, by name."""
    found = {"plain": Case(model)}
    if MODELS[model].images:
        found["channels_last"] = Case(model, channels_last=True)
        found["bf16"] = Case(model, precision="bf16")
        found["bf16 channels_last"] = Case(model, precision="bf16", channels_last=True)
    if MODELS[model].blocks:
        found["checkpointing"] = Case(model, checkpointing=True)
    return found
