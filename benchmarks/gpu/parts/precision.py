"""FP32, TF32, and autocast to either half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.truth import truth

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model in every precision."""
    for model in setting.of(MODELS):
        for precision in PRECISIONS:
            case = Case(model, precision=precision)
            yield f"{model}/{precision}", partial(truth, case, setting)
