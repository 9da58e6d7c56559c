"""Recordings with one planted cause each, as the JSON that torch.profiler writes.

A step runs healthy work (operators that launch kernels well ahead of the device), then the defect.
A case is drawn from its seed: the number of steps, the healthy operators, how much of the step the
defect takes (30 to 60 %), and the line of the script that it is on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANNOTATION = "user_annotation"
REDUCTION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
STEP_US = 10_000
AHEAD_US = 800  # of the CPU for a step of the device
MAIN, STREAM, NETWORK = (100, 100), (0, 7), (0, 20)
HEALTHY = (
    ("aten::mm", "ampere_fp16_s16816gemm_fp16_128x128"),
    ("aten::bmm", "ampere_fp16_s16816gemm_fp16_64x64"),
    ("aten::addmm", "ampere_fp16_s16816gemm_fp16_256x64"),
)
A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}]


Plant = Callable[["Recording", float, float, float], None]


@dataclass
class Recording:
    """Events as they are added; `line` is that of the planted defect."""

    chance: random.Random
    plant: Plant
    overlaps: bool  # whether gradients are reduced while kernels run
    events: list[dict[str, Any]] = field(default_factory=list)
    line: int = 0
    launches: int = 0

    def add(
        self, track: tuple[int, int], start: float, end: float, name: str, kind: str, **arguments: Any
    ) -> None:
        """One slice; times in µs."""
        place = {"pid": track[0], "tid": track[1], "ts": round(start, 3), "dur": round(end - start, 3)}
        self.events.append({"ph": "X", "cat": kind, "name": name, **place, "args": arguments})

    def launch(
        self,
        at: float,
        start: float,
        end: float,
        operator: str,
        kernel: str,
        call: str = "cudaLaunchKernel",
        **arguments: Any,
    ) -> None:
        """An operator that launches device work from `start` to `end`."""
        self.launches += 1
        kind = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
        stream = NETWORK if kernel.startswith("nccl") else STREAM
        self.add(MAIN, at, at + 8, operator, "cpu_op", **arguments)
        self.add(MAIN, at + 2, at + 6, call, "cuda_runtime", correlation=self.launches)
        self.add(
            stream, start, end, kernel, kind, correlation=self.launches, device=0, stream=stream[1],
            **({"bytes": 4_000} if kind == "gpu_memcpy" else {}),
        )  # fmt: skip

    def call(self, start: float, end: float, function: str, line: int = 0) -> None:
        """A Python function of the script, by default the one with the defect."""
        name = f"/home/me/train.py({line or self.line}): {function}"
        self.add(MAIN, start, end, name, "python_function")

    def healthy(self, cpu: float, start: float, end: float) -> None:
        """Kernels back to back, launched ahead."""
        count, first = 12, start + 30
        self.call(cpu, cpu + 180, "forward", self.line + 7)
        for number in range(count):
            last = start + 30 + (number + 1) * (end - start - 40) / count
            self.launch(cpu + 10 * number, first, last, *self.chance.choice(HEALTHY))
            first = last
        self._harmless(cpu + 125, first)
        if self.overlaps and self.plant is not exposed_reduction:  # long, and hidden by the other kernels
            self.launch(cpu + 172, start + 40, end - 60, "c10d::allreduce_", REDUCTION)

    def _harmless(self, cpu: float, end: float) -> None:
        """What looks like some of the other causes, and takes next to nothing."""
        self.add(
            MAIN, cpu, cpu + 6, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ANNOTATION
        )
        self.launch(cpu + 8, end - 6, end - 4, "aten::_log_softmax", "softmax_warp_forward")
        if self.plant is not optimizer_by_parameter:
            self.add(MAIN, cpu + 18, cpu + 32, "Optimizer.step#SGD.step", ANNOTATION)
            self.launch(cpu + 20, end - 4, end - 2, "aten::_fused_sgd_", "multi_tensor_apply_kernel")
        self.launch(
            cpu + 34, end - 2, end - 1, "aten::copy_", "Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync"
        )


def slow_loading(step: Recording, cpu: float, start: float, length: float) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    step.call(start, start + length, "next_batch")
    step.add(MAIN, start + 2, start + length - 2, name, ANNOTATION)


def reading_a_value(step: Recording, cpu: float, start: float, length: float) -> None:
    """Each part of the work waits for a value before the next is launched."""
    step.call(start, start + length, "log_loss")
    rounds = 8
    for number in range(rounds):
        at = start + 4 + number * (length - 8) / rounds
        end = at + (length - 8) / rounds
        step.launch(at, at + 20, at + (end - at) * 0.5, "aten::mm", HEALTHY[0][1])
        copied = at + (end - at) * 0.5
        step.add(MAIN, at + 10, copied + 4, "aten::item", "cpu_op")
        step.add(MAIN, at + 11, copied + 3, "aten::_local_scalar_dense", "cpu_op")
        step.launches += 1
        step.add(MAIN, at + 12, at + 16, "cudaMemcpyAsync", "cuda_runtime", correlation=step.launches)
        step.add(MAIN, at + 17, copied + 2, "cudaStreamSynchronize", "cuda_runtime")
        name = "Memcpy DtoH (Device -> Pageable)"
        step.add(
            STREAM, copied, copied + 1, name, "gpu_memcpy",
            correlation=step.launches, device=0, stream=7, bytes=4,
        )  # fmt: skip


def pageable_copy(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(start, start + length, "to_device")
    step.add(MAIN, start + 1, start + length - 1, "aten::to", "cpu_op")
    step.add(MAIN, start + 2, start + length - 2, "aten::copy_", "cpu_op")
    step.launches += 1
    number = step.launches
    step.add(MAIN, start + 4, start + 14, "cudaMemcpyAsync", "cuda_runtime", correlation=number)
    step.add(MAIN, start + 15, start + length - 3, "cudaStreamSynchronize", "cuda_runtime")
    name = "Memcpy HtoD (Pageable -> Device)"
    step.add(
        STREAM, start + 20, start + length - 5, name, "gpu_memcpy",
        correlation=number, device=0, stream=7, bytes=64_000_000,
    )  # fmt: skip


def optimizer_by_parameter(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(start, start + length, "update")
    step.add(MAIN, start + 2, start + length - 2, "Optimizer.step#AdamW.step", ANNOTATION)
    for number in range(int((length - 20) / 20)):
        at = start + 10 + 20 * number
        step.launch(at, at + 10, at + 13, "aten::mul_", "vectorized_elementwise_kernel")


def python_in_the_step(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(start, start + length, "build_masks")


def exposed_reduction(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(cpu, cpu + 20, "reduce_gradients")
    step.launch(cpu + 2, start, start + length, "c10d::allreduce_", REDUCTION)


def layout_conversions(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(cpu, cpu + 200, "convolve")
    names = ("cudnn::ops::nchwToNhwcKernel", "ampere_fp16_s16816cudnn_conv", "cudnn::ops::nhwcToNchwKernel")
    for number in range(9):
        first, last = (start + part * length / 9 for part in (number, number + 1))
        step.launch(cpu + 2 + 20 * number, first, last, "aten::cudnn_convolution", names[number % 3])


def indexing_backward(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(cpu, cpu + 100, "pick_rows")
    sequence = 5 + step.launches
    numbers: dict[str, Any] = {"Sequence number": sequence}
    step.launch(cpu + 2, start, start + 20, "aten::index", "index_kernel", **numbers)
    step.add(MAIN, cpu + 50, cpu + 80, "IndexBackward0", "cpu_op", **numbers, **{"Fwd thread id": 1})
    step.launch(cpu + 55, start + 20, start + length, "aten::_index_put_impl_", "indexing_backward_kernel")


def unfused_attention(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(cpu, cpu + 100, "attend")
    first = start
    parts = (("aten::bmm", HEALTHY[1][1], 0.1), ("aten::softmax", "softmax_warp_forward", 0.8))
    for number, (operator, kernel, share) in enumerate((*parts, parts[0])):
        step.launch(cpu + 2 + 20 * number, first, first + share * length, operator, kernel)
        first += share * length


def single_precision(step: Recording, cpu: float, start: float, length: float) -> None:
    step.call(cpu, cpu + 100, "project")
    sizes: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
    step.launch(cpu + 2, start, start + length, "aten::mm", "ampere_sgemm_128x128_nn", **sizes)


@dataclass(frozen=True)
class Cause:
    """A defect, and the words of the field by which a reader recognizes it."""

    name: str
    plant: Plant
    cue: str

    @property
    def is_of_device(self) -> bool:
        """Whether the device sets the length of the step, and the CPU runs ahead of it."""
        return self.plant in OF_DEVICE


CAUSES = (
    Cause("slow loading", slow_loading, r"DataLoader|data.loading"),
    Cause("reading a value", reading_a_value, r"\.item\(|aten::item|Synchronize"),
    Cause("pageable copy", pageable_copy, r"pageable (host )?memory|pageable ->"),
    Cause("exposed reduction", exposed_reduction, r"nccl|all_?reduce|communication is exposed"),
    Cause("optimizer by parameter", optimizer_by_parameter, r"Optimizer\.step|fused=True"),
    Cause("layout conversions", layout_conversions, r"nchw|nhwc|channels_last"),
    Cause(
        "indexing backward", indexing_backward, r"indexing_backward|IndexBackward|backward pass of indexing"
    ),
    Cause("Python in the step", python_in_the_step, r"build_masks"),
    Cause("unfused attention", unfused_attention, r"softmax|scaled_dot_product"),
    Cause("single precision", single_precision, r"sgemm|fp32|tf32"),
)
OF_DEVICE = {exposed_reduction, layout_conversions, indexing_backward, unfused_attention, single_precision}
SEEDS = 4


@dataclass(frozen=True)
class Case:
    """A recording: which cause it has, and the line of the script that an answer must name."""

    cause: Cause
    seed: int
    line: int
    text: str

    @property
    def name(self) -> str:
        """The file's name, which says nothing of the cause."""
        return f"recording_{CAUSES.index(self.cause) * SEEDS + self.seed:02d}.json"

    def write(self, folder: Path) -> Path:
        """The recording in a folder."""
        path = folder / self.name
        path.write_text(self.text)
        return path


def case(cause: Cause, seed: int) -> Case:
    """One recording; the same for the same cause and seed."""
    chance = random.Random(f"{cause.name} {seed}")
    recording = Recording(chance, cause.plant, seed % 2 == 1, line=chance.randrange(20, 900))
    share = chance.uniform(0.3, 0.6)
    first, steps = chance.randrange(0, 90), chance.randrange(3, 9)
    for number in range(steps):
        start = number * STEP_US + 100
        end, middle = start + STEP_US - 10, start + STEP_US * (1 - share)
        cpu, ends = (number * AHEAD_US, (number + 1) * AHEAD_US) if cause.is_of_device else (start, end + 9)
        recording.add(MAIN, cpu, ends - 1, f"ProfilerStep#{first + number}", ANNOTATION)
        if cause.plant is slow_loading:
            cause.plant(recording, start, start, STEP_US * share)
            recording.healthy(start + STEP_US * share, start + STEP_US * share, end)
        else:
            recording.healthy(cpu + 5, start + 5, middle)
            cause.plant(recording, cpu + 300 if cause.is_of_device else middle, middle, end - middle - 10)
    header = {"schemaVersion": 1, "deviceProperties": A100, "distributedInfo": {"rank": 0, "world_size": 8}}
    text = json.dumps({**header, "traceEvents": recording.events})
    return Case(cause, seed, recording.line, text)


def cases() -> list[Case]:
    """All recordings."""
    return [case(cause, seed) for cause in CAUSES for seed in range(SEEDS)]
