"""Under torch.compile, in FP32 and bf16; `first_step_s` is what compiling takes, with no cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.truth import truth


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model in FP32, and then every model in bf16, since each takes minutes."""
    precisions = ("fp32",) if setting.quick else ("fp32", "bf16")
    for precision in precisions:
        for model in setting.of(MODELS)[: 1 if setting.quick else None]:
            case = Case(model, precision=precision, compiled=True)
            yield f"{model}/{precision}", partial(compiled, case, setting)


def compiled(case: Case, setting: Setting) -> Json:
    """Step times and memory, with nothing left of what was compiled before."""
    from torch._inductor.utils import fresh_cache  # slow to import

    with fresh_cache():
        return truth(case, setting)
