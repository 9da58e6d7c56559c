"""The facts of a report as plain data: no NumPy here, so that a kept report is shown at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.summary.plain_data import plain_data

_NOTED_COPIES = 0.01  # of the window


@dataclass(frozen=True)
class WarmUp:
    """A first step that is excluded from all means because it takes far longer."""

    step: int
    ms: float


@dataclass(frozen=True)
class StepTimes:
    """The steps that figures are means of, and their spread.

    Attributes:
        numbers: of the steps.
        evidence: how the steps were found.
        warm_up: the first step, if it is left out.
        inner: updates of the parameters in one call of a compiled program that loops over batches;
            0 if it loops an unknown number of times.
        inner_batches: gradients that such a loop adds up for each update; likewise.
        device_busy_ms: mean busy time of the busiest device per step; None if none works.
        device_idle_ms: the rest of the step.
    """

    numbers: list[int]
    evidence: str
    mean_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    warm_up: WarmUp | None
    inner: int = 1
    inner_batches: int = 1
    device_busy_ms: float | None = None
    device_idle_ms: float | None = None


@dataclass(frozen=True)
class Stage:
    """A stage's mean time per step.

    Attributes:
        device_ms: device busy time of its work.
        share: of the step.
    """

    stage: str
    cpu_ms: float
    device_ms: float
    share: float
    bound_by: str


@dataclass(frozen=True)
class Device:
    """A device's mean time per step.

    Attributes:
        window_ms: from its first work of the step to its last.
        computing_ms: time of other work than communication.
        copying_ms: the part of it in which only copies and fills of memory run.
        idle_ms: idle time by cause.
        communication_ms: exposed communication: collectives run and nothing computes.
        overlapped_ms: communication hidden under computation.
    """

    device: int
    name: str
    window_ms: float
    computing_ms: float
    copying_ms: float
    idle_ms: dict[str, float]
    communication_ms: float
    overlapped_ms: float

    @property
    def parts_ms(self) -> dict[str, float]:
        """What it does: `computing`, `copying` from 1 % of the window on, and idle by cause."""
        copying = self.copying_ms if self.copying_ms >= _NOTED_COPIES * self.window_ms else 0.0
        parts = {"computing": self.computing_ms - copying, **self.idle_ms}
        return parts | {"copying": copying} if copying else parts


def busiest_ms(devices: Sequence[Device]) -> float:
    """Busy time per step of the device that computes longest; 0 without devices."""
    device = max(devices, key=lambda device: device.computing_ms, default=None)
    return device.computing_ms + device.idle_ms["communication"] if device else 0.0


@dataclass(frozen=True)
class Efficiency:
    """FLOPs and FLOP/s of the matrix products, convolutions and attention of a step.

    Attributes:
        flops: floating-point operations per step; a multiply-add counts as two.
        repeated_flops: FLOPs that backward recomputes (checkpointing).
        known: share of the time of this work whose FLOPs are known.
        tflops: rate over the whole step, TFLOP/s.
        busy_tflops: rate while this work runs, TFLOP/s. None for a trace of another tool without
            device work: the CPU calls may only be launches.
        gpu: name of the device if its peak rates are known, else empty.
        peak_tflops: peak rate for each precision in use.
        mfu: model FLOPs utilization: time that the FLOPs, without recomputation, take at the peak
            rate of their precision, as a share of the step. None if a peak is unknown, or the
            FLOPs of half of the time or more are unknown.
        hfu: hardware FLOPs utilization: the same with recomputation.
        busy_utilization: the same as a share of the time in which this work runs.
        counted_by: `xla` if XLA recorded the FLOPs of any of it, `shapes` if they come from the
            shapes in XLA's programs, else empty: from the recorded arguments of operators.

    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """

    flops: float
    repeated_flops: float
    known: float
    tflops: float
    busy_tflops: float | None
    gpu: str
    peak_tflops: dict[str, float]
    mfu: float | None
    hfu: float | None
    busy_utilization: float | None
    counted_by: str


@dataclass(frozen=True)
class Kernel:
    """Device work of one name (operators if there is no device), mean per step.

    Attributes:
        tflops: achieved TFLOP/s; None if unknown, and for everything but matrix products,
            convolutions and attention.
        gbytes: achieved GB/s if inputs and outputs move once; None if unknown.
        intensity: arithmetic intensity, FLOPs per byte moved; None if unknown.
        of_peak: time at the device's peak rates as a share of the measured time; None if unknown.
        limit: `compute` or `memory`, whichever bounds the time at peak; else empty.
    """

    name: str
    kind: str
    stage: str
    count: float
    total_ms: float
    share: float
    tflops: float | None
    gbytes: float | None
    intensity: float | None
    of_peak: float | None
    limit: str


@dataclass(frozen=True)
class Node:
    """A module, or `count` consecutive copies of one block; times are means per step, ms.

    `flops` counts matrix products, convolutions and attention per step; None if unknown.
    `outside` is time outside of training, such as rollouts and evaluation.
    `intensity` is FLOPs per byte of all work whose FLOPs and bytes are known; None if none is.
    `spread_ms` holds the shortest and the longest time among the folded modules. `path` is the path
    of the first, `modules` has the ids of all, and `copies` has a node for each, without children.
    """

    name: str
    path: str
    kind: str
    count: int
    calls: float
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float
    recompute_cpu_ms: float
    recompute_device_ms: float
    outside_cpu_ms: float
    outside_device_ms: float
    flops: float | None
    intensity: float | None
    parameters: int | None
    file: str
    line: int | None
    call_file: str
    call_line: int | None
    spread_ms: tuple[float, float]
    modules: list[int]
    copies: list[Node]
    children: list[Node]

    @property
    def cpu_ms(self) -> float:
        """CPU time, all of it, ms a step."""
        trained = self.forward_cpu_ms + self.backward_cpu_ms + self.recompute_cpu_ms
        return trained + self.outside_cpu_ms

    @property
    def device_ms(self) -> float:
        """Device time, all of it, ms a step."""
        trained = self.forward_device_ms + self.backward_device_ms + self.recompute_device_ms
        return trained + self.outside_device_ms


@dataclass(frozen=True)
class Verdict:
    """What bounds the step.

    Attributes:
        share: of the step that this costs.
        sentence: the same in words.
    """

    bound_by: str
    share: float
    sentence: str


@dataclass(frozen=True)
class RunPlace:
    """Where a stage of the run begins, how often, and its share of the run."""

    stage: str
    function: str
    file: str
    line: int
    count: int
    share: float


@dataclass(frozen=True)
class RunTraining:
    """Trainings of the run that follow each other and are alike.

    Attributes:
        first: the number of the first of them.
        count: how many they are.
        optimizer: its class.
        function, file, line: where it steps.
        steps: in all of them.
        step_ms: their usual length.
        share: of the run.
        first_optimizer: the number of the first optimizer that steps in the first of them.
        recorded: whether the recorded steps are of one of them.
    """

    first: int
    count: int
    optimizer: str
    function: str
    file: str
    line: int
    steps: int
    step_ms: float
    share: float
    first_optimizer: int
    recorded: bool


@dataclass(frozen=True)
class RunShares:
    """The whole run, as its process measured it, without the time that recording took.

    Attributes:
        seconds: length of the run.
        ended: whether that is all of it; a run that was killed is known until some time before.
        steps: training steps.
        shares: of the run, by stage, the largest first.
        outside_of_steps: share of the run that is not training steps.
        data_loading: share of the run in which training steps waited for data.
        first_step: share of the run in the first step, None if unknown.
        torch_imported: share of the run until torch was imported, part of the start-up.
        places: where stages of the run begin.
        trainings: one after the other, as those of a sweep.
    """

    seconds: float
    ended: bool
    steps: int
    shares: dict[str, float]
    outside_of_steps: float
    data_loading: float
    first_step: float | None
    torch_imported: float | None
    places: list[RunPlace]
    trainings: list[RunTraining]


@dataclass(frozen=True)
class Iterations:
    """The iterations of one kind: how many, and means; None where the trace does not say.

    Attributes:
        stage: prefill, decode, or both in one.
        count: how many there are.
        ms: mean time from the start of an iteration on the CPU to its end.
        prefill_requests: requests whose prompts an iteration processes.
        prefill_tokens: tokens of these prompts.
        decode_requests: requests for which an iteration generates.
        decode_tokens: tokens that it processes for them.
    """

    stage: str
    count: int
    ms: float
    prefill_requests: float | None
    prefill_tokens: float | None
    decode_requests: float | None
    decode_tokens: float | None


@dataclass(frozen=True)
class StagePlace:
    """A function and line that runs outside of training.

    Attributes:
        stage: the stage of the step that it is part of.
        line: where it begins, or the line that was sampled most often.
        ms: its time per step.
        share: of the step.
        calls: per step; 0 where samples tell the time.
        samples: how many were found in it; 0 where its time is measured.
        error_ms: what `ms` is known to, with 95 % confidence; 0 where it is measured.
    """

    stage: str
    function: str
    file: str
    line: int
    ms: float
    share: float
    calls: float
    samples: int = 0
    error_ms: float = 0.0


@dataclass(frozen=True)
class UpdateStage:
    """A stage of an update: its mean time per step."""

    stage: str
    cpu_ms: float
    device_ms: float


@dataclass(frozen=True)
class UpdatedModel:
    """A model that runs in an update: its mean time per step."""

    path: str
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float


@dataclass(frozen=True)
class Update:
    """What leads to the steps of one optimizer, or of several that share their passes.

    Attributes:
        optimizer: its name, or the names of several.
        count: how often it happens per step of the loop.
        cpu_ms: mean per step of the loop.
        device_ms: device busy time of its work.
        models: that run in it, the longest first.
    """

    optimizer: str
    count: float
    cpu_ms: float
    device_ms: float
    stages: list[UpdateStage]
    models: list[UpdatedModel]


@dataclass(frozen=True)
class Summary:
    """Everything that a report says about one rank; `to_json` returns plain data."""

    source: str
    framework: str
    rank: int
    world_size: int
    steps: StepTimes
    verdict: Verdict
    stages: list[Stage]
    devices: list[Device]
    efficiency: Efficiency | None
    kinds: dict[str, float]
    kernels: list[Kernel]
    kernels_are: str
    modules: list[Node]
    modules_evidence: str
    data_wait_ms: float
    parameters: int | None
    parameter_bytes: int | None
    peak_memory_bytes: dict[str, int]
    capture: Mapping[str, Any]
    recording_cost: Mapping[str, Any] = field(default_factory=dict)
    core_share: float | None = None
    run: RunShares | None = None
    iterations: list[Iterations] = field(default_factory=list)
    places: list[StagePlace] = field(default_factory=list)
    not_sampled: str = ""
    updates: list[Update] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
        facts: dict[str, Any] = plain_data(self)
        return facts
