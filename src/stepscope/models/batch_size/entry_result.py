"""The result for one entry file: models over the batch size, breakdown, estimate, and what the panel
shows of it, in the editor and in `stepscope batch --html`.

The panel's types, `web/src/api/batch_types.ts`, are generated from the Structs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stepscope.base.typed_data import convert
from stepscope.facts.roofline.rates import Capacity, usable_bytes
from stepscope.models.batch_size.breakdown import CostNode, StepBreakdown
from stepscope.models.batch_size.entry import Entry
from stepscope.models.batch_size.entry_profile import BatchPrediction, Profile, suggestions
from stepscope.models.batch_size.measure_entry import MemoryEstimate
from stepscope.models.batch_size.measurement import Reserve

_CHOICES = 256  # of a curve: a pixel or two each
_XLA_RESERVES = 1.02  # of what is in use; chosen: XLA assigns one block to all temporaries of a program
BEYOND = 4  # times the largest batch size measured; further than that no line may be trusted


Fit = Literal["yes", "no", "unsure", "unknown"]


@dataclass(frozen=True)
class Result:
    """The result for one entry file."""

    entry: Entry
    profile: Profile
    # What a step at the entry's own batch size is made of; None if not asked for.
    breakdown: StepBreakdown | None = None
    # Memory estimated with fake tensors; None if not asked for or not possible.
    estimate: MemoryEstimate | None = None
    capture: Path | None = None  # the steps that were recorded; the file is gone once the session is closed
    captured_batch: int | None = None
    # Of JAX, the peak at the entry's own batch size by kind, bytes: `parameters` and `optimizer_state`, or
    # both as `state`; `inputs`; `results` in memory of their own; `temporaries`, activations included;
    # `others` on the device.
    program_memory: Mapping[str, int] = field(default_factory=dict)

    def to_json(self, at: Sequence[int] = ()) -> dict[str, Any]:
        """As `stepscope batch --json` has it."""
        entry = self.entry
        result: dict[str, Any] = {
            "entry": entry.path,
            "arguments": list(entry.arguments),
            "kind": entry.kind,
            "batch": entry.batch,
            "site": asdict(entry.site),
            **self.profile.to_json(at),
        }
        if self.breakdown is not None:
            result["breakdown"] = msgspec.to_builtins(self.breakdown)
        if self.program_memory:
            result["program_memory"] = dict(self.program_memory)
        if self.estimate is not None:
            result["estimate"] = self.estimate.to_json()
        return result

    def fits(self, capacity: Capacity) -> dict[str, Any]:
        """The largest batch size whose peak is within a capacity.

        Room is left for the device's context, and for what the allocator reserves beyond what
        tensors take. What a run on a CPU holds without its being part of the model or the step, such
        as the data set, stays in host memory.

        Returns:
            What `stepscope batch --fits --json` has; batch is None if not even one sample fits, and
            `batch_range` is of the largest that fits. The throughput is that of the device that was
            measured on.
        """
        limit, largest = capacity.usable_bytes, self.profile.batch_for_bytes
        batch = largest(limit, lambda size: self._on_device(size) * self.reserve.when_full(size))
        ends = [largest(limit, lambda size: self.reserved_range(size)[1])]
        ends += [largest(limit, lambda size: self.reserved_range(size)[0])]
        predicted: BatchPrediction = self.profile.predict(batch) if batch else {}
        sizes = self.bytes_on_device(batch) if batch else None
        return {
            "name": capacity.name,
            "capacity_bytes": capacity.bytes,
            "usable_bytes": capacity.usable_bytes,
            "host_bytes": self.host_bytes,
            "batch": batch,
            "batch_range": ends,
            "extrapolated": predicted.get("extrapolated"),
            "bytes": sizes and sizes[0],
            "bytes_range": [*sizes[1:]] if sizes else [None, None],
            "throughput": predicted.get("throughput"),
            "throughput_range": predicted.get("throughput_range"),
        }

    def bytes_on_device(self, batch: int) -> tuple[int, int, int] | None:
        """The peak without what stays in host memory, its least and its most; None without a model."""
        found = self.profile.predict(batch)
        if "bytes" not in found:
            return None
        sizes = found["bytes"], *found["bytes_range"]
        value, least, most = (max(size - self.host_bytes, 0) for size in sizes)
        return value, least, most

    def fit(self, batch: int, usable_bytes: int) -> Fit:
        """Whether the step runs where PyTorch's allocator may reserve so many bytes."""
        if self.profile.memory is None:
            return "unknown"
        low, high = self.reserved_range(batch)
        return "yes" if high <= usable_bytes else "no" if low > usable_bytes else "unsure"

    def _on_device(self, batch: int) -> float:
        """Bytes in use at the peak, without workspaces."""
        return max(self.profile.memory.least(batch) - self.host_bytes, 0.0) if self.profile.memory else 0.0

    def reserved_range(self, batch: int) -> tuple[float, float]:
        """The least and the most bytes that PyTorch's allocator may need on a device."""
        memory, (least, most) = self.profile.memory, self.reserve.range(batch)
        low, high = memory.range(batch) if memory else (0.0, 0.0)
        return max(low - self.host_bytes, 0.0) * least, max(high - self.host_bytes, 0.0) * most

    @property
    def reserve(self) -> Reserve:
        """What PyTorch's allocator holds beyond what tensors take, on a device of any size."""
        if self.program_memory:
            return Reserve((1,), (_XLA_RESERVES,), least=True)
        return replace(self.profile.reserve, counts=True)

    @property
    def host_bytes(self) -> int:
        """Bytes at the peak of a run on a CPU that belong to neither the model nor the step."""
        if self.profile.device.get("type") != "cpu" or self.breakdown is None:
            return 0
        return int(self.breakdown.memory.get("untracked", 0))


def curve(
    profile: Profile, batch: int, breakdown: StepBreakdown | None = None, capacity: float | None = None
) -> list[BatchPrediction]:
    """Predictions from one sample to as many as memory allows, about 256 at most, and at most four times
    beyond what was measured; with `memory`, the peak by kind, where there is a breakdown."""
    measured = [point.batch for point in profile.points]
    fitting = profile.largest_fitting(capacity)
    beyond = BEYOND * max([*measured, batch])
    most = max(beyond if fitting is None else min(beyond, fitting), 1)
    stride = -(-most // _CHOICES)
    grid = range(stride, most + 1, stride)
    sizes = sorted({1, *grid, *(size for size in (*measured, batch) if size <= most)})
    rows = [profile.predict(size) for size in sizes]
    for row in rows if breakdown and breakdown.memory else ():
        if breakdown and "bytes" in row:
            row["memory"] = breakdown.memory_at(row["batch"], row["bytes"])
    return rows


def batch_answer(result: Result, capacity: float | None = None) -> dict[str, Any]:
    """What the page shows: `stepscope batch --json`, with `now` (the prediction at the present batch
    size), `suggestions`, `curve` (predictions to choose from) and `capacity`."""
    profile, batch = result.profile, result.entry.batch
    capacity = capacity or usable_bytes(profile.device)
    return {
        **result.to_json(),
        "sentence": result.entry.site.sentence,
        "capacity": capacity,
        "now": profile.predict(batch),
        "suggestions": suggestions(profile, batch, capacity),
        "curve": curve(profile, batch, result.breakdown, capacity),
    }


class PanelPrediction(msgspec.Struct):
    """Throughput and memory at a batch size."""

    batch: int
    ms: float  # of a step
    ms_range: tuple[float, float]
    throughput: float  # samples a second
    throughput_range: tuple[float, float | None]  # the upper end is null if it has no bound
    bytes: float | UnsetType = UNSET  # peak memory; missing if memory has no model
    bytes_range: tuple[int, int] | UnsetType = UNSET
    memory: dict[str, int] | UnsetType = UNSET  # the peak by kind


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


class PanelSite(msgspec.Struct):
    """Where the batch size is written."""

    path: str
    line: int
    name: str
    text: str


class PanelDevice(msgspec.Struct):
    """The device that was measured on."""

    type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class BatchProfile(msgspec.Struct):
    """An entry file at several batch sizes."""

    entry: str
    batch: int
    sentence: str  # where the batch size is written, in words
    site: PanelSite
    points: list[Point]
    max_throughput: float | None  # limit for large batches, samples a second
    fit_error: float | None  # relative error of the model of run time
    memory_fit_error: float | None  # relative error of the model of memory
    too_large: int | None  # the smallest batch size that ran out of memory
    capacity: float | None  # bytes that a step may take
    device: PanelDevice
    warnings: list[str]
    now: PanelPrediction | None  # prediction at the present batch size; null if run time has no model
    suggestions: list[PanelPrediction]  # predictions at batch sizes worth trying
    curve: list[PanelPrediction]  # predictions to choose from; empty if run time has no model
    breakdown: Breakdown | UnsetType = UNSET


class BatchAnswer(msgspec.Struct):
    """What the panel asks the editor for."""

    batch: BatchProfile | None  # null until it is measured
    problem: str | None  # why measuring failed, else null
    written: int | None  # batch size in the source as it is now; the measurement may be older


def batch_profile(result: Result, capacity: float | None = None) -> BatchProfile:
    """What the panel shows of an entry file; `capacity` is the bytes that a step may take, by
    default the device's memory."""
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
