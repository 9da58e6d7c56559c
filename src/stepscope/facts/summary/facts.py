"""The facts of a report: what `report --json` prints, the cache keeps and the page shows.

No NumPy here, so that a kept report is shown at once.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

_NOTED_COPIES = 0.01  # of the window


class WarmUp(msgspec.Struct, frozen=True):
    """A first step that is excluded from all means because it takes far longer."""

    step: int
    ms: float


class StepTimes(msgspec.Struct, frozen=True):
    """The steps that figures are means of, and their spread."""

    numbers: list[int]  # of the steps
    evidence: str  # how the steps were found
    mean_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    warm_up: WarmUp | None  # the first step, if it is left out
    # updates of the parameters in one call of a compiled program that loops over batches; 0 if it loops
    # an unknown number of times
    inner: int = 1
    inner_batches: int = 1  # gradients that such a loop adds up for each update; likewise
    device_busy_ms: float | None = None  # mean busy time of the busiest device per step; None if none works
    device_idle_ms: float | None = None  # the rest of the step
    warm_up_steps: int = 0  # how many of the first steps are left out
    unknown_spread: str = ""  # what one step alone does not show; empty for several


class Stage(msgspec.Struct, frozen=True):
    """A stage's mean time per step."""

    stage: str
    cpu_ms: float
    device_ms: float  # device busy time of its work
    share: float  # of the step
    bound_by: str


class Device(msgspec.Struct, frozen=True):
    """A device's mean time per step."""

    device: int
    name: str
    window_ms: float  # from its first work of the step to its last
    computing_ms: float  # time of other work than communication
    copying_ms: float  # the part of it in which only copies and fills of memory run
    idle_ms: dict[str, float]  # idle time by cause
    communication_ms: float  # collectives run on the device; others, of the host, only leave it idle
    overlapped_ms: float  # the part of it that is hidden under computation
    # time that later steps do not pay: idle in one-off costs, or comparing algorithms
    one_off_ms: float = 0.0

    @property
    def steady_ms(self) -> float:
        """The window without one-off costs."""
        return max(self.window_ms - self.one_off_ms, 0.0)

    @property
    def parts_ms(self) -> dict[str, float]:
        """What it does: `computing`, `copying` from 1 % of the window on, and idle by cause."""
        copying = self.copying_ms if self.copying_ms >= _NOTED_COPIES * self.window_ms else 0.0
        parts = {"computing": self.computing_ms - copying, **self.idle_ms}
        return parts | {"copying": copying} if copying else parts


def busiest_ms(devices: Sequence[Device]) -> float:
    """Busy time per step of the device that computes longest; 0 without devices."""
    device = max(devices, key=lambda device: device.computing_ms, default=None)
    return device.computing_ms + device.communication_ms - device.overlapped_ms if device else 0.0


class Efficiency(msgspec.Struct, frozen=True):
    """FLOPs and FLOP/s of the matrix products, convolutions and attention of a step.

    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """

    flops: float  # floating-point operations per step; a multiply-add counts as two
    repeated_flops: float  # FLOPs that backward recomputes (checkpointing)
    known: float  # share of the time of this work whose FLOPs are known
    tflops: float  # rate over the whole step, TFLOP/s
    # rate while this work runs, TFLOP/s. None for a trace of another tool without device work: the CPU
    # calls may only be launches.
    busy_tflops: float | None
    gpu: str  # name of the device if its peak rates are known, else empty
    peak_tflops: dict[str, float]  # peak rate for each precision in use
    # model FLOPs utilization: time that the FLOPs, without recomputation, take at the peak rate of their
    # precision, as a share of the step. None if a peak is unknown, or the FLOPs of half of the time or
    # more are unknown.
    mfu: float | None
    hfu: float | None  # hardware FLOPs utilization: the same with recomputation
    busy_utilization: float | None  # the same as a share of the time in which this work runs
    # `xla` if XLA recorded the FLOPs of any of it, `shapes` if they come from the shapes in XLA's
    # programs, else empty: from the recorded arguments of operators
    counted_by: str
    # FLOPs of the smallest and the largest step, where the same operators have inputs of other sizes and
    # steps take the longer the more these need, as with batches padded to their longest sample
    unequal_steps: tuple[float, float] | None = None


class Kernel(msgspec.Struct, frozen=True):
    """Device work of one name (operators if there is no device), mean per step."""

    name: str  # as recorded
    kind: str  # of work, such as `gemm`: that of most of its time
    stage: str  # that of most of its time
    count: float
    total_ms: float
    share: float  # of all work
    # achieved TFLOP/s; null if unknown, and for everything but matrix products, convolutions and attention
    tflops: float | None
    gbytes: float | None  # achieved GB/s if inputs and outputs move once; null if unknown
    intensity: float | None  # arithmetic intensity, FLOPs per byte moved; null if unknown
    # time at the device's peak rates as a share of the measured time; null if unknown; above 1 only if a
    # peak rate or a count is wrong
    of_peak: float | None
    # `compute` or `memory`, whichever bounds the time at peak; else empty
    limit: Literal["compute", "memory", ""]


class KernelStatistics(Kernel, frozen=True, kw_only=True):
    """A kernel with statistics of its pieces."""

    mean_ns: int
    least_ns: int
    most_ns: int
    std_ns: int
    longest_event: int  # id of the longest piece
    stages: dict[str, float]  # share of the time in each known stage, the largest first


class ModuleNode(msgspec.Struct, frozen=True):
    """A module, or `count` equal modules in a row; times are means per step, ms."""

    name: str
    path: str  # of the first of them
    kind: str  # its class
    count: int
    calls: float  # mean a step
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float
    recompute_cpu_ms: float
    recompute_device_ms: float
    outside_cpu_ms: float  # outside of training, as in rollouts and evaluation
    outside_device_ms: float  # outside of training, as in rollouts and evaluation
    flops: float | None  # of matrix products, convolutions and attention, a step; null if unknown
    intensity: float | None  # FLOPs per byte of all work whose FLOPs and bytes are known; null if none is
    parameters: int | None
    file: str  # where its class is defined, empty if unknown
    line: int | None
    call_file: str  # where it is called, empty if unknown
    call_line: int | None
    spread_ms: tuple[float, float]  # least and most time of one of them
    modules: list[int]  # ids of all of them
    copies: "list[ModuleNode]"  # each of them alone and without children, if `count` is above 1
    children: "list[ModuleNode]"

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


class Verdict(msgspec.Struct, frozen=True):
    """What bounds the step."""

    bound_by: str
    share: float  # of the step that this costs
    sentence: str  # the same in words


class RunPlace(msgspec.Struct, frozen=True):
    """Where a stage of the run begins, how often, and its share of the run."""

    stage: str
    function: str
    file: str
    line: int
    count: int
    share: float


class RunTraining(msgspec.Struct, frozen=True):
    """Trainings of the run that follow each other and are alike."""

    first: int  # the number of the first of them
    count: int  # how many they are
    optimizer: str  # its class
    function: str  # where it steps
    file: str  # where it steps
    line: int  # where it steps
    steps: int  # in all of them
    step_ms: float  # their usual length
    share: float  # of the run
    first_optimizer: int  # the number of the first optimizer that steps in the first of them
    recorded: bool  # whether the recorded steps are of one of them


class RunShares(msgspec.Struct, frozen=True):
    """The whole run, as its process measured it, without the time that recording took."""

    seconds: float  # length of the run
    ended: bool  # whether that is all of it; a run that was killed is known until some time before
    steps: int  # training steps
    shares: dict[str, float]  # of the run, by stage, the largest first
    outside_of_steps: float  # share of the run that is not training steps
    data_loading: float  # share of the run in which training steps waited for data
    first_step: float | None  # share of the run in the first step, None if unknown
    torch_imported: float | None  # share of the run until torch was imported, part of the start-up
    places: list[RunPlace]  # where stages of the run begin
    trainings: list[RunTraining]  # one after the other, as those of a sweep

    @property
    def work_ms_per_step(self) -> float:
        """The run without its start-up, ms per training step; 0 without a step."""
        return 1e3 * self.seconds * self.after_start_up / self.steps if self.steps else 0.0

    @property
    def after_start_up(self) -> float:
        """The share of the run that is not its start-up."""
        return 1 - self.shares.get("start_up", 0.0)


class Iterations(msgspec.Struct, frozen=True):
    """The iterations of one kind: how many, and means; None where the trace does not say."""

    stage: str  # prefill, decode, or both in one
    count: int  # how many there are
    ms: float  # mean time from the start of an iteration on the CPU to its end
    prefill_requests: float | None  # requests whose prompts an iteration processes
    prefill_tokens: float | None  # tokens of these prompts
    decode_requests: float | None  # requests for which an iteration generates
    decode_tokens: float | None  # tokens that it processes for them


class StagePlace(msgspec.Struct, frozen=True):
    """A function and line that runs outside of training."""

    stage: str  # the stage of the step that it is part of
    function: str
    file: str
    line: int  # where it begins, or the line that was sampled most often
    ms: float  # its time per step
    share: float  # of the step
    calls: float  # per step; 0 where samples tell the time
    samples: int = 0  # how many were found in it; 0 where its time is measured
    error_ms: float = 0.0  # of `ms`: of samples with 95 % confidence, else how far the run's median is
    called: tuple[str, ...] = ()  # the lines that call it up to the loop's, such as `main (/x/train.py:9)`


class UpdateStage(msgspec.Struct, frozen=True):
    """A stage of an update: its mean time per step."""

    stage: str
    cpu_ms: float
    device_ms: float


class UpdatedModel(msgspec.Struct, frozen=True):
    """A model that runs in an update: its mean time per step."""

    path: str
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float


class Update(msgspec.Struct, frozen=True):
    """What leads to the steps of one optimizer, or of several that share their passes."""

    optimizer: str  # its name, or the names of several
    count: float  # how often it happens per step of the loop
    cpu_ms: float  # mean per step of the loop
    device_ms: float  # device busy time of its work
    stages: list[UpdateStage]
    models: list[UpdatedModel]  # that run in it, the longest first


class Warning(msgspec.Struct, frozen=True):
    """Something that could not be read, linked or attributed."""

    rank: int
    code: str
    message: str
    count: int  # how often


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `stepscope report --json` reports of one rank, without modules and kernels."""

    source: str  # path of the file
    framework: str
    rank: int
    world_size: int
    steps: StepTimes
    verdict: Verdict
    stages: list[Stage]
    devices: list[Device]
    efficiency: Efficiency | None
    kinds: dict[str, float]  # device time by kind of work, ms
    kernels_are: str  # `kernels`, or `operators` for a trace without device work
    modules_evidence: str  # how modules were found
    data_wait_ms: float
    parameters: int | None
    parameter_bytes: int | None
    peak_memory_bytes: dict[str, int]
    capture: dict[str, Any]  # how the trace was recorded, as written by `stepscope run`
    # what recording cost and was removed from all times, ns per step (`recorded_ns`, `unrecorded_ns`,
    # `removed_ns`, `memory_ns` of it, `events`), or why it is `unknown`
    recording_cost: dict[str, Any] = {}
    # share of a core that the training thread got while it could run, null if unknown
    core_share: float | None = None
    run: RunShares | None = None  # the whole run by stage, null where it was not measured
    iterations: list[Iterations] = []  # of a server or a generating loop, by kind
    places: list[StagePlace] = []  # where work outside of training begins, the longest first
    not_sampled: str = ""  # why the rest of `other` has no functions and lines, else empty
    updates: list[Update] = []  # by optimizer, where the loop has several
    warnings: list[Warning] = []


class HardwareCounter(msgspec.Struct, frozen=True):
    """A counter of a device: means over time, in the unit that its name says."""

    device: int
    name: str  # as recorded
    mean: float  # over the steps
    working: float | None  # while work of the steps runs on the device; null without such work


class Summary(Facts, frozen=True, kw_only=True):
    """Everything that a report says about one rank."""

    kernels: list[Kernel]
    modules: list[ModuleNode]  # their times are sums over devices and threads
    at_once: float = 1.0  # how many devices, or threads, do their work at once, in the mean
    counters: list[HardwareCounter] = []  # of devices, where the recorder sampled them
