"""Build small traces of training steps, with a CPU thread that launches and a device that works.

A `Builder` keeps a clock for the CPU and one for each stream, as a machine does: a kernel starts
when it was launched and its stream is free, a synchronization returns when the stream is done.
Times are microseconds; a jitter of a few percent makes steps differ.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

DEVICES = {
    "cuda": {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108},
    "rocm": {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304},
    "jax": {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108},
}
KERNELS = {
    "cuda": {
        "gemm": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn",
        "conv": "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128",
        "attention": "pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits>",
        "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::Functor>",
        "norm": "void at::native::vectorized_layer_norm_kernel<float, float>",
    },
    "rocm": {
        "gemm": "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN_K1.kd",
        "conv": "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex0.kd",
        "attention": "fmha_fwd_hd128_bf16.kd",
        "elementwise": "void at::native::vectorized_elementwise_kernel<4, Functor> [clone .kd]",
        "norm": "void at::native::vectorized_layer_norm_kernel<float, float> [clone .kd]",
    },
}


@dataclass
class Builder:
    """A trace in the making.

    Attributes:
        flavor: `cuda`, `rocm`, `jax` (on CUDA), or `cpu`, where operators are the work.
        seed: of the jitter.
    """

    flavor: str = "cuda"
    seed: int = 0
    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    correlation: int = 0
    sequence: int = 0
    thread: str = "main"

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def on_device(self) -> bool:
        """Whether a device does the work."""
        return self.flavor != "cpu"

    def jitter(self, us: float) -> float:
        """A time of about that length."""
        return us * (1 + 0.04 * (self.random.random() - 0.5))

    def event(self, begin: float, end: float, name: str, **options: Any) -> None:
        """One event on the thread of the loop."""
        self._line(self.thread, begin, end, name, options)

    @contextmanager
    def span(self, name: str, **options: Any) -> Iterator[None]:
        """An event around what runs inside."""
        begin, at = self.now, len(self.lines)
        self.now += 0.5
        yield
        self.now += 0.5
        self._line(self.thread, begin, self.now, name, options, at)

    def python(self, us: float, *frames: str) -> None:
        """Python that runs for a while, inside frames (outermost first)."""
        begin, at = self.now, len(self.lines)
        self.now += us
        for depth, frame in enumerate(frames):
            self._line(self.thread, begin + depth, self.now - depth, frame, {"cat": "python"}, at)
            at += 1

    def op(
        self,
        name: str,
        us: float,
        kind: str = "elementwise",
        kernel: str = "",
        cpu: float = 4,
        count: int = 1,
        **options: Any,
    ) -> None:
        """An operator: `us` of work on the device, or on the CPU where there is none."""
        begin, at = self.now, len(self.lines)
        if not self.on_device:
            self.now += self.jitter(us)
        else:
            for _ in range(count):
                self.launch(kernel or KERNELS[self.flavor][kind], us / count, cpu)
        self._line(self.thread, begin, self.now, name, options, at)
        self.now += 0.3

    def launch(
        self, kernel: str, us: float, cpu: float = 4, stream: int = 7, call: str = "", **options: Any
    ) -> float:
        """A kernel; returns when it ends."""
        prefix = "hip" if self.flavor == "rocm" else "cuda"
        self.correlation += 1
        self.event(
            self.now + 0.4 * cpu, self.now + 0.9 * cpu, call or f"{prefix}LaunchKernel", corr=self.correlation
        )
        begin = max(self.now + cpu + 2, self.free.get(stream, 0.0) + 0.3)
        end = begin + self.jitter(us)
        self.free[stream] = end
        self._line(f"stream {stream}", begin, end, kernel, {"corr": self.correlation, **options})
        self.now += cpu
        return end

    def copy(self, name: str, us: float, blocking: bool = False, volume: int = 0) -> None:
        """A copy; blocking if its call returns only when it is done."""
        prefix = "hip" if self.flavor == "rocm" else "cuda"
        self.correlation += 1
        begin = max(self.now + 6, self.free.get(7, 0.0) + 0.3)
        end = begin + self.jitter(us)
        self.free[7] = end
        call_end = end + 3 if blocking else self.now + 5
        self.event(self.now, call_end, f"{prefix}MemcpyAsync", corr=self.correlation)
        options = {"corr": self.correlation, "cat": "memcpy", "bytes": volume}
        self._line("stream 7", begin, end, name, options)
        self.now = call_end + 0.3

    def wait(self, call: str = "") -> None:
        """Wait for the device."""
        prefix = "hip" if self.flavor == "rocm" else "cuda"
        end = max(self.now, *self.free.values(), self.now) + 2
        self.event(self.now, end, call or f"{prefix}StreamSynchronize")
        self.now = end + 0.3

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A training step; the CPU runs at most half a step ahead of the device."""
        with self.span(f"ProfilerStep#{number}"):
            yield

    def next_sequence(self) -> int:
        """The number that ties a forward operator to its backward."""
        self.sequence += 1
        return self.sequence

    def trace(self, **metadata: Any) -> Trace:
        """The annotated trace."""
        if self.on_device:
            metadata.setdefault("devices", (DEVICES[self.flavor],))
        metadata.setdefault("framework", "jax" if self.flavor == "jax" else "pytorch")
        metadata.setdefault("source", "corpus")
        return annotate(drawn_trace("\n".join(self.lines), **metadata))

    def _line(
        self, track: str, begin: float, end: float, name: str, options: dict[str, Any], at: int | None = None
    ) -> None:
        text = " ".join(f"{key}={_text(value)}" for key, value in options.items())
        line = f"{track} | {begin:.3f} {end:.3f} | {name}" + (f" | {text}" if text else "")
        self.lines.insert(len(self.lines) if at is None else at, line)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))
