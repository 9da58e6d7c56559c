"""Host and device apart: a few unrecorded steps of PyTorch on a GPU.

The CPU launches a step into an empty queue: until the last launch it took what the CPU needs. Or
the step is launched while the device sleeps, so that everything is queued when it begins: from then
on it took what the device needs. A step takes about the longer of the two, and a change of one
gains nothing while the other is longer.

A script that waits for its device within a step (`loss.item()`) makes both times longer; then
neither is less than the step, and each is an upper bound.
"""

import sys
from typing import Any

from stepscope.record.unreplaced import time

_STEPS = 3  # of each kind: enough for a median, few enough that nobody waits for them
_CYCLES_PER_NS = 2  # of the device: GPUs run at 1 to 2.6 GHz, and longer sleep does no harm
_LONGEST_SLEEP_NS = 200_000_000  # a longer step is launched for longer than anyone should wait
_DEVICES = ("cuda", "xpu", "hpu", "npu", "mtia")  # that PyTorch and its plugins name; ROCm's is cuda


def wait_for_devices() -> None:
    """Wait until each device that PyTorch has begun to use has done what was launched."""
    torch: Any = sys.modules.get("torch")
    for name in _DEVICES:
        if (device := getattr(torch, name, None)) is not None and device.is_initialized():
            device.synchronize()
    if hasattr(torch, "mps") and torch.backends.mps.is_available():  # which is not asked whether it began
        torch.mps.synchronize()


class DeviceTimes:
    """Times steps in turns by the CPU and by the device, each from an empty queue."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda  # `torch.cuda`, or what looks like it
        self._host_ns: list[int] = []
        self._device_ns: list[int] = []
        self._begun_ns = 0
        self._events: tuple[Any, Any] | None = None  # of a step that the device times

    @classmethod
    def of_torch(cls) -> "DeviceTimes | None":
        """For the device that this process uses; None if it uses none."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized() or not hasattr(cuda, "_sleep"):
            return None
        return None if cuda.is_current_stream_capturing() else cls(cuda)

    @property
    def is_over(self) -> bool:
        return len(self._device_ns) >= _STEPS

    def begin(self) -> None:
        """The next step begins: by turns the CPU's and the device's."""
        self._cuda.synchronize()
        if len(self._host_ns) > len(self._device_ns):
            self._queue_behind_sleep()
        self._begun_ns = time.perf_counter_ns()

    def end(self) -> None:
        """The step has ended; what it launched may still run."""
        host_ns = time.perf_counter_ns() - self._begun_ns
        if not self._events:
            self._host_ns.append(host_ns)
            return
        (begun, ended), self._events = self._events, None
        ended.record()
        ended.synchronize()
        self._device_ns.append(round(1e6 * begun.elapsed_time(ended)))

    def describe(self) -> dict[str, list[int]] | None:
        """Nanoseconds of each step, by the CPU and by the device; None before all are timed."""
        return {"host_ns": self._host_ns, "device_ns": self._device_ns} if self.is_over else None

    def _queue_behind_sleep(self) -> None:
        self._cuda._sleep(min(self._host_ns[-1], _LONGEST_SLEEP_NS) * _CYCLES_PER_NS)
        begun, ended = (self._cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        self._events = begun, ended
