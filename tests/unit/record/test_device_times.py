"""Host and device times of a step, with a device whose clock the test moves."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record import device_times
from stepscope.record.device_times import DeviceTimes, wait_for_devices


class Device:
    """Runs what is launched in order; a launch takes the CPU some time, and so may a wait."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.free_ns = 0
        self.Event = lambda enable_timing: Event(self)

    def launch(self, host_ns: int, device_ns: int) -> None:
        self.now_ns += host_ns
        self.free_ns = max(self.free_ns, self.now_ns) + device_ns

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)

    def _sleep(self, cycles: int) -> None:
        self.launch(0, cycles)  # at 1 GHz: longer than asked for


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.time_ns = device, 0

    def record(self) -> None:
        self.time_ns = max(self.device.free_ns, self.device.now_ns)

    def synchronize(self) -> None:
        self.device.synchronize()

    def elapsed_time(self, other: Event) -> float:
        return (other.time_ns - self.time_ns) / 1e6


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(device_times.time, "perf_counter_ns", lambda: device.now_ns)
    return device


def timed(device: Device, launches: int, host_ns: int, device_ns: int) -> tuple[dict[str, Any] | None, int]:
    times, steps = DeviceTimes(device), 0
    while not times.is_over:
        times.begin()
        for _ in range(launches):
            device.launch(host_ns, device_ns)
        times.end()
        steps += 1
    return times.describe(), steps


@pytest.mark.parametrize(("host_ns", "device_ns"), [(5_000, 20_000), (5_000, 1_000), (4_000, 4_000)])
def test_both_are_what_they_would_be_alone(device: Device, host_ns: int, device_ns: int) -> None:
    facts, steps = timed(device, 100, host_ns, device_ns)
    assert facts == {"host_ns": [100 * host_ns] * 3, "device_ns": [100 * device_ns] * 3}
    assert steps == 6


def test_nothing_is_said_before_all_steps_are_timed(device: Device) -> None:
    times = DeviceTimes(device)
    times.begin()
    times.end()
    assert times.describe() is None


@pytest.mark.parametrize("begun", [[], ["cuda"], ["xpu", "hpu"], ["cuda", "mtia", "mps"]])
def test_every_device_that_the_process_uses_is_waited_for(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    def device(name: str) -> SimpleNamespace:
        wait = partial(waited.append, name)
        return SimpleNamespace(is_initialized=lambda: name in begun, synchronize=wait)

    devices = {name: device(name) for name in ("cuda", "xpu", "hpu", "mtia", "mps")}  # no plugin of NPUs
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=devices["mps"].is_initialized))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**devices, backends=backends))
    wait_for_devices()
    assert waited == begun


def test_a_process_without_a_device_times_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DeviceTimes.of_torch() is None
