"""Fourteen minutes that decide what is open, most evidence per minute first; it can be cut anywhere.

Hypotheses, by stepscope from the FP32 captures of the H200, written down before:

- a step takes the longer of `host_ns` and `device_ns` to within 3 %;
- kernels of captures in TF32 and bfloat16 take what `amp` and `tf32` say, 10 % on average;
- `cudnn_benchmark`: U-Net 156 to 131 ms; bf16 channels_last: ResNet-50 below its NCHW step;
- `compile` in bf16: BERT-base 16.6 (10.5 to 23.3), GPT-2 23.0 (14.6 to 34.1), DLRM 10.1 ms (8.3 to 12.1);
- operators timed alone gain what they gain in the step, to within 10 %.

FP32 comes before and after each model's other precisions: where the two differ, the CPU was another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement, batch_sizes
from benchmarks.gpu.places import CAP_BYTES, RESULTS
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import Effort, measure_steps
from benchmarks.gpu.training import Training

from stepscope.models.calibration.measure_device import measure
from stepscope.record.device_times import DeviceTimes

_EFFORT = Effort(warmup=4, least=8, most=20, seconds=1.0)
_CORES = 8  # that the process keeps to, so that it stays on one socket
_SECONDS = 12.0  # of a model's operators
_FILLED = 0.9  # of the cap by the largest batch size
_COMPILED = {"bert_base": "bf16", "gpt2": "bf16", "dlrm": "bf16"}  # compiled: minutes each
_SMALL = '["relu",[[8]],[[1]],["float"],[""]]'


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """A B A of precisions, single hypotheses, both ends of batch sizes, operators alone, the compiler."""
    if setting.on_gpu:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    for model in setting.of(MODELS):
        for name in ("fp32", "tf32", "bf16", "fp32 again"):
            case = Case(model, precision=name.split()[0])
            yield (
                f"precision/{model}/{name}",
                partial(apart, case, setting, profiled=name in ("tf32", "bf16")),
            )
    yield from _hypotheses(setting)
    for model in setting.of(MODELS):
        for size in _sizes(model, setting, done):
            yield f"size/{model}/{size}", partial(batch_sizes.measure, model, size, setting)
    for model in setting.of(MODELS):
        yield f"operators/{model}", partial(operators, model, setting)
    for model, precision in _COMPILED.items() if setting.on_gpu else ():
        case = Case(model, precision=precision, compiled=True)
        yield f"compile/{model}/{precision}", partial(apart, case, setting, profiled=True)


def _hypotheses(setting: Setting) -> Iterator[Measurement]:
    for model in setting.of(("unet", "resnet50")):
        tuned = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
        yield f"cudnn_benchmark/{model}", partial(apart, Case(model), setting, inside=tuned)
        case = Case(model, precision="bf16", channels_last=True)
        yield f"channels_last/{model}/bf16", partial(apart, case, setting, profiled=True)
    offloading = torch.autograd.graph.save_on_cpu(pin_memory=setting.on_gpu)
    model = setting.of(MODELS)[min(1, len(setting.of(MODELS)) - 1)]
    yield f"vdnn/{model}", partial(apart, Case(model), setting, inside=offloading)
    yield f"sync/{model}", partial(apart, Case(model), setting, waits=True)


def apart(
    case: Case, setting: Setting, *, inside: Any = None, waits: bool = False, profiled: bool = False
) -> Json:
    """Steps in a row, host and device time apart, and one recorded step.

    Args:
        inside: a context around all steps.
        waits: each step reads its loss.
        profiled: whether one step is recorded.
    """
    training = Training(case, setting)

    def step() -> object:
        loss = training.step()
        return loss.item() if waits else loss

    with inside or nullcontext():
        found = {"case": case.to_json(), "samples": training.samples, **measure_steps(step, setting, _EFFORT)}
        times = DeviceTimes.of_torch() if setting.on_gpu else None
        while times and not times.is_over:
            times.begin()
            step()
            times.end()
        return {
            **found,
            "apart": times and times.describe(),
            **(_recorded(case, setting, step) if profiled else {}),
        }


def _recorded(case: Case, setting: Setting, step: Any) -> Json:
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if setting.on_gpu else []
    words = [
        case.model,
        case.precision,
        *(name for name in ("channels_last", "compiled") if getattr(case, name)),
    ]
    path = setting.out / "profiles" / f"{'.'.join(words)}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profile:
        step()
        if setting.on_gpu:
            torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))
    return {"file": str(path.relative_to(setting.out)), "bytes": path.stat().st_size}


def operators(model: str, setting: Setting) -> Json:
    """What `stepscope calibrate` measures for the captures of this model that are there."""
    from stepscope import open as open_trace
    from stepscope.models.calibration.device_calibration import wanted_operators

    captures = [] if setting.quick else sorted(RESULTS.glob(f"*/captures/{model}.plain.stepscope"))
    wanted = [text for path in captures for text in wanted_operators(open_trace(path, cache=False))]
    request = {"device": setting.device, "operators": wanted or [_SMALL], "seconds": _SECONDS}
    return measure(request)


def _sizes(model: str, setting: Setting, done: Mapping[str, Json]) -> Iterator[int]:
    """Both ends of batch sizes: small, four times the usual, and as large as memory allows."""
    own = 4 if setting.quick else MODELS[model].batch_size
    first = [max(1, own // 32), 4 * own]
    yield from first
    points = [(size, done.get(f"size/{model}/{size}", {}).get("peak_allocated_bytes")) for size in first]
    (small, low), (large, high) = points
    if low and high and high > low:
        room = _FILLED * CAP_BYTES - high
        yield max(large + 1, min(int(large + room * (large - small) / (high - low)), MODELS[model].largest))
