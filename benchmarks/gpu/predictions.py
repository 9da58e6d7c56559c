"""Predictions of stepscope from the FP32 captures alone, compared with measurements.

`accuracy.py` makes tables of it.

Recording slows the CPU, so each graph runs at the pace of the model's CPU that nothing watched: the
least of the times of steps by hand-set timers and of the smallest batch, which a GPU does not
limit. Where the step without a change is that of the graph, the prediction is relative to it. A
model's run time and memory over the batch size are made of five of the sizes that were measured,
chosen as `stepscope batch` chooses them on a GPU; they predict the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import MODELS
from benchmarks.gpu.places import CAP_BYTES
from benchmarks.gpu.results import MEASURED, read_results

import stepscope
from stepscope.errors import ChangeError
from stepscope.graph import Graph, build_graph
from stepscope.models.batch_size.entry_profile import BatchPrediction, make_profile
from stepscope.models.batch_size.measurement import BatchPoint
from stepscope.models.batch_size.sweep import WANTED, widest
from stepscope.models.whatif import CHANGES, parse_request, predict

Json = dict[str, Any]
_HELD = 0.1  # of a step; chosen: steps of GPUs differ by less from run to run, CPUs by up to 48 %


@dataclass(frozen=True)
class Trial:
    """A change that was really made: the name of a part's measurement without it, and with it."""

    change: str
    part: str
    before: str
    after: str
    capture: str = "plain"


TRIALS = (
    Trial("amp", "precision", "fp32", "bf16"),
    Trial("amp:dtype=float16", "precision", "fp32", "fp16"),
    Trial("tf32", "precision", "fp32", "tf32"),
    Trial("fused_optimizer", "optimizers", "foreach", "fused"),
    Trial("cuda_graphs", "layouts", "plain", "CUDA graph"),
    Trial("amp", "layouts", "plain", "bf16"),  # once more, of the models with images
    Trial("channels_last", "layouts", "plain", "channels_last"),
    Trial("amp channels_last", "layouts", "plain", "bf16 channels_last"),
    Trial("checkpoint", "layouts", "plain", "checkpointing"),
    Trial("dataloader", "loading", "0 workers", "one batch", capture="loader"),
)


@dataclass(frozen=True)
class Outcome:
    """One change to one model; `predicted_ms` is None where it was refused, and `reason` says why.

    Attributes:
        model: its name.
        change: what was asked, and the measurement that it is held against.
        before_ms: the step without the change, measured.
        predicted_ms: with the change.
        measured_ms: with the change.
        held: whether the control held: nothing but the change differs from the capture. Where it
            did not, the machine was another, and the outcome says nothing about the prediction.
        covered: whether the predicted range holds the measured step.
        extremes: the shortest and the longest measured step.
        reason: why nothing was predicted.
    """

    model: str
    change: str
    before_ms: float
    predicted_ms: float | None
    measured_ms: float
    held: bool = False
    covered: bool = False
    extremes: tuple[float, float] = (0.0, 0.0)
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.predicted_ms is None else self.predicted_ms / self.measured_ms - 1

    @property
    def right_sign(self) -> bool:
        """Whether a gain was predicted where there was one; within 2 %, or where measured steps lie
        on both sides of the step before, there is neither."""
        low, high = self.extremes
        if self.predicted_ms is None or low <= self.before_ms <= high:
            return True
        gains = [self.before_ms / ms - 1 for ms in (self.predicted_ms, self.measured_ms)]
        return gains[0] * gains[1] >= 0 or min(map(abs, gains)) < 0.02


def replay_errors(device: Path) -> dict[str, float]:
    """By capture: the unchanged step simulated over the recorded one, less 1."""
    return {
        path.name: predict(_graph(path), []).replay_error
        for path in sorted((device / "captures").glob("*.stepscope"))
    }


@cache
def outcomes(device: Path) -> tuple[Outcome, ...]:
    """Every change to every model of which there are a capture and both measurements."""
    return tuple(_every_outcome(device))


def _every_outcome(device: Path) -> Iterator[Outcome]:
    for model in MODELS:
        for capture in ("plain", "loader"):
            path = device / "captures" / f"{model}.{capture}.stepscope"
            trials = [trial for trial in TRIALS if trial.capture == capture]
            if path.exists():
                graph = _graph(path, host_ms(device, model))
                yield from _outcomes(graph, model, trials, device)


def host_ms(device: Path, model: str) -> float | None:
    """What the CPU of a step needs that nothing watched; None where nothing shows it."""
    sizes = [one for key, one in measured(device, "batch_sizes").items() if key.startswith(f"{model}/")]
    smallest = min(sizes, key=lambda one: int(one["samples"]), default=None)
    times = [smallest["step_ms"]["median"]] if smallest else []
    timed = measured(device, "stages").get(model)
    return min([*times, *([timed["step_ms"]["min"]] if timed else [])], default=None)


def _outcomes(graph: Graph, model: str, trials: Sequence[Trial], device: Path) -> Iterator[Outcome]:
    for trial in trials:
        times = _step_times(device, trial.part)
        before, after = (times.get(f"{model}/{name}") for name in (trial.before, trial.after))
        if before is None or after is None:
            continue
        name = f"{trial.change.partition(':')[0]} ({trial.after})"
        precise, spread = (
            _control(device, model, trial),
            _extremes(device, trial.part, f"{model}/{trial.after}"),
        )
        try:
            requests = [parse_request(text, CHANGES) for text in _asked(trial.change, graph, model)]
            prediction = predict(graph, requests)
        except ChangeError as error:
            yield Outcome(model, name, before, None, after, reason=str(error))
        else:
            held = abs(before / prediction.replayed_step_ms - 1) <= _HELD and precise
            scale = before / prediction.replayed_step_ms if held else 1.0
            low, high = (scale * end for end in prediction.range)
            predicted = scale * prediction.predicted_step_ms
            yield Outcome(model, name, before, predicted, after, held, low <= after <= high, spread)


def _control(device: Path, model: str, trial: Trial) -> bool:
    """Whether TF32, whose launches are those of FP32, is not slower: else the CPU was another one."""
    if trial.part != "precision":
        return True
    times = _step_times(device, trial.part)
    plain, tf32 = (times.get(f"{model}/{name}", 0.0) for name in ("fp32", "tf32"))
    return tf32 <= plain * (1 + _HELD)


def _extremes(device: Path, part: str, key: str) -> tuple[float, float]:
    times = measured(device, part)[key]["step_ms"]
    return times["min"], times["max"]


def _graph(path: Path, host: float | None = None) -> Graph:
    """The graph of a capture, to which `host` is what `stepscope run` would have measured after it."""
    trace = stepscope.open(path, cache=False)
    if host is not None:
        capture = trace.metadata.capture
        apart = {"host_ns": [1e6 * host], "device_ns": [0]}
        steps = {**(capture.get("unrecorded_steps") or {}), "apart": apart}
        trace = trace.with_metadata(capture={**capture, "unrecorded_steps": steps})
    return build_graph(trace)


def _asked(change: str, graph: Graph, model: str) -> list[str]:
    """A change as the command line has it; checkpointing names the modules that were."""
    if change != "checkpoint":
        return change.split()
    modules = graph.trace["modules"]
    blocks = [name in MODELS[model].blocks for name in modules.text("class")]
    paths = [path for path, is_block in zip(modules.text("path"), blocks, strict=True) if is_block]
    globs = dict.fromkeys(re.sub(r"\d+", "*", path) for path in paths)
    return [f"checkpoint:module={glob}" for glob in globs]


def _step_times(device: Path, part: str) -> dict[str, float]:
    return {key: one["step_ms"]["median"] for key, one in measured(device, part).items()}


def measured(device: Path, part: str) -> Mapping[str, Json]:
    """The measurements of a part that came to an end; none where it was not taken."""
    path = device / f"{part}.json"
    found = read_results(path)["measurements"] if path.exists() else {}
    return {key: one for key, one in found.items() if one["outcome"] == MEASURED}


# -- batch sizes


@dataclass(frozen=True)
class Sizes:
    """One model over the batch size: relative errors on the sizes that the fit has not seen.

    Attributes:
        reserved, held: errors of what the allocator holds, and whether its range covers each.
        largest, range: the largest size that is predicted to fit under the cap, and its range.
        fits, fails: the largest that was measured to fit, and the smallest that did not.
    """

    model: str
    fitted: tuple[int, ...]
    predicted: tuple[int, ...]
    throughput: tuple[float, ...]
    memory: tuple[float, ...]
    covered: tuple[bool, ...]
    reserved: tuple[float, ...]
    held: tuple[bool, ...]
    largest: int | None
    range: tuple[int | None, ...]
    fits: int
    fails: int | None

    @property
    def right(self) -> bool:
        """Whether the largest size that fits lies where measurements have it."""
        return self.fits <= (self.largest or 0) < (self.fails or 1 << 60)


def batch_sizes(device: Path, most: float = 1.0) -> Iterator[Sizes]:
    """`stepscope batch` with the sizes that were measured, where there are more than five.

    Args:
        most: share of the cap that tensors of a size to fit may take.
    """
    found = measured(device, "batch_sizes")
    for model in MODELS:
        mine = [one for key, one in found.items() if key.startswith(f"{model}/")]
        points = sorted(map(_point, mine), key=lambda point: point.batch)
        if len(points) > WANTED:
            yield _sizes(model, points, most * CAP_BYTES, first_failed(device, model))


def first_failed(device: Path, model: str) -> int | None:
    """The smallest size that ran out of memory."""
    found = read_results(device / "batch_sizes.json")["measurements"].items()
    keys = [key for key, one in found if one["outcome"] == "out of memory" and key.startswith(f"{model}/")]
    return min((int(key.partition("/")[2]) for key in keys), default=None)


def _point(one: Json) -> BatchPoint:
    memory = one.get("peak_allocated_bytes", 0)
    reserved = one.get("peak_reserved_bytes", 0)
    return BatchPoint(one["samples"], one["step_ms"]["median"], memory, reserved=reserved)


def _chosen(model: str, points: list[BatchPoint]) -> list[BatchPoint]:
    """Both ends and the usual size, then where time or memory is least certain."""
    own = min(points, key=lambda point: abs(log(point.batch / MODELS[model].batch_size)))
    fitted = sorted({points[0], own, points[-1]}, key=lambda point: point.batch)
    while len(fitted) < WANTED:
        chosen = widest(fitted, [point.batch for point in points if point not in fitted])
        if chosen is None:
            break
        fitted = [point for point in points if point in fitted or point.batch == chosen]
    return fitted


def _sizes(model: str, points: list[BatchPoint], most: float, failed: int | None) -> Sizes:
    fitted = _chosen(model, [point for point in points if point.bytes <= most])
    profile = make_profile(fitted, device={"type": "cuda"})
    memory, reserve = profile.memory.at, profile.reserve
    ends = [lambda size, end=end: memory(size) * reserve.range(size)[end] for end in (1, 0)]
    others = [one for one in points if one not in fitted]
    pairs = [(profile.predict(point.batch), point) for point in others]
    return Sizes(
        model,
        tuple(point.batch for point in fitted),
        tuple(point.batch for point in others),
        tuple(abs(one["throughput"] / point.throughput - 1) for one, point in pairs),
        tuple(abs(one["bytes"] / point.bytes - 1) for one, point in pairs if point.bytes),
        tuple(low <= value <= high for low, value, high in _ranges(pairs)),
        tuple(abs(one["reserved"] / point.reserved - 1) for one, point in pairs if point.reserved),
        tuple(low <= point.reserved <= high for one, point in pairs for low, high in [one["reserved_range"]]),
        profile.batch_for_bytes(CAP_BYTES),
        tuple(profile.batch_for_bytes(CAP_BYTES, end) for end in ends),
        points[-1].batch,
        failed,
    )


def _ranges(pairs: Sequence[tuple[BatchPrediction, BatchPoint]]) -> Iterator[tuple[float, float, float]]:
    """The range of time and of memory around each measured value, as wide as noise at least."""
    for predicted, point in pairs:
        for key, value, noise in (("ms_range", point.ms, 0.03), ("bytes_range", point.bytes, 0.002)):
            low, high = predicted[key]
            yield low * (1 - noise), value, high * (1 + noise)
