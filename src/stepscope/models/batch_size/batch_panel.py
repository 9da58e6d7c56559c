"""What the batch size panel shows of an entry file: in the editor, and in `stepscope batch --html`.

The panel's types, `web/src/api/batch_types.ts`, are generated from these Structs.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stepscope.base.typed_data import convert
from stepscope.models.batch_size.breakdown import CostNode
from stepscope.models.batch_size.entry_result import Result, batch_answer


class Prediction(msgspec.Struct):
    """Throughput and memory at a batch size.

    Attributes:
        ms: of a step.
        throughput: samples a second.
        throughput_range: the upper end is null if it has no bound.
        bytes: peak memory; missing if memory has no model.
        memory: the peak by kind.
    """

    batch: int
    ms: float
    ms_range: tuple[float, float]
    throughput: float
    throughput_range: tuple[float, float | None]
    bytes: float | UnsetType = UNSET
    bytes_range: tuple[int, int] | UnsetType = UNSET
    memory: dict[str, int] | UnsetType = UNSET


class Point(msgspec.Struct):
    """A batch size that was measured."""

    batch: int
    ms: float  # median step
    bytes: float  # peak memory
    throughput: float  # samples a second
    held_back: bool  # whether it tested the models before it joined them


class Breakdown(msgspec.Struct):
    """One step at the entry's batch size."""

    batch: int
    step_ms: float  # length of a step that is not recorded
    peak_bytes: float
    memory: dict[str, int]  # the peak by kind
    tree: CostNode


class Site(msgspec.Struct):
    """Where the batch size is written."""

    path: str
    line: int
    name: str
    text: str


class Device(msgspec.Struct):
    """The device that was measured on."""

    type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class BatchProfile(msgspec.Struct):
    """An entry file at several batch sizes."""

    entry: str
    batch: int
    sentence: str  # where the batch size is written, in words
    site: Site
    points: list[Point]
    max_throughput: float | None  # limit for large batches, samples a second
    fit_error: float | None  # relative error of the model of run time
    memory_fit_error: float | None  # relative error of the model of memory
    too_large: int | None  # the smallest batch size that ran out of memory
    capacity: float | None  # bytes that a step may take
    device: Device
    warnings: list[str]
    now: Prediction | None  # prediction at the present batch size; null if run time has no model
    suggestions: list[Prediction]  # predictions at batch sizes worth trying
    curve: list[Prediction]  # predictions to choose from; empty if run time has no model
    breakdown: Breakdown | UnsetType = UNSET


class BatchAnswer(msgspec.Struct):
    """What the panel asks the editor for."""

    batch: BatchProfile | None  # null until it is measured
    problem: str | None  # why measuring failed, else null
    written: int | None  # batch size in the source as it is now; the measurement may be older


def batch_profile(result: Result, capacity: float | None = None) -> BatchProfile:
    """What the panel shows of an entry file.

    Args:
        capacity: bytes that a step may take; by default the device's memory.
    """
    return _profile(batch_answer(result, capacity))


def panel_answer(batch: Mapping[str, Any] | None, problem: str | None, written: int | None) -> dict[str, Any]:
    """A `BatchAnswer` as plain data, for an editor's message; `batch` is a `batch_answer`."""
    profile = None if batch is None else _profile(batch)
    return dict(msgspec.to_builtins(BatchAnswer(profile, problem, written)))


def _profile(answer: Mapping[str, Any]) -> BatchProfile:
    """The part of a `batch_answer` that the panel shows; predictions need a model of run time."""
    now, suggestions, curve = (
        [*filter(_is_known, rows)] for rows in ([answer["now"]], answer["suggestions"], answer["curve"])
    )
    # A CPU has no name.
    device = {key: value for key, value in answer["device"].items() if value is not None}
    shown = {"now": now[0] if now else None, "suggestions": suggestions, "curve": curve}
    shown["device"] = device
    return convert({**answer, **shown}, BatchProfile)


def _is_known(prediction: dict[str, Any]) -> bool:
    return None not in (prediction.get("throughput"), *prediction.get("throughput_range", [None])[:1])
