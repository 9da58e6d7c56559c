"""Adam by a loop over parameters, by lists of them, and as one kernel; all else is FP32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.truth import truth

ADAMS = ("forloop", "foreach", "fused")


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model with every Adam."""
    for model in setting.of(MODELS):
        for adam in ADAMS:
            yield f"{model}/{adam}", partial(truth, Case(model, adam=adam), setting)
