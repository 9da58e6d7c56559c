"""Steps that wait for a data loader, and steps that do not: by how many processes draw samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.case import Case
from benchmarks.gpu.drawn import drawn_batches
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import measure_steps
from benchmarks.gpu.training import Training
from benchmarks.gpu.truth import truth


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """One model on images, whose samples are slow to draw, and one on tokens."""
    for model in setting.of(["resnet50", "bert_base"]):
        yield f"{model}/one batch", partial(truth, Case(model), setting)
        for workers in (0, 1) if setting.quick else (0, 2, _many()):
            yield f"{model}/{workers} workers", partial(loaded, model, workers, setting)


def loaded(model: str, workers: int, setting: Setting) -> Json:
    """Step times with batches from a loader."""
    case = Case(model)
    training = Training(case, setting)
    batches = drawn_batches(model, setting.quick, training.samples, setting.device, workers)
    found = measure_steps(lambda: training.step(next(batches)), setting)
    return {"case": case.to_json(), "samples": training.samples, "workers": workers, **found}


def _many() -> int:
    """Enough to keep up, where there are cores for them."""
    return max(3, min(8, (os.cpu_count() or 4) - 1))
