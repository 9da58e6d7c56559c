"""What PyTorch says of a device, as a device that does not exist would have it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.read.watched_run import read_watched_run
from stepscope.record.unreplaced import time
from stepscope.record.watch.step_log import DeviceClock
from stepscope.record.watch.watch_file import WatchFile

S = 1_000_000_000


class Device:
    """`torch.cuda`, of a device that is hot and slow from second 2 on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.ns)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=self))
        nvml = SimpleNamespace(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40 * self.is_hot)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    @property
    def is_hot(self) -> bool:
        return self.ns >= 2 * S

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _get_pynvml_handler(self, device: int) -> None: ...

    def memory_stats(self, device: int) -> dict[str, int]:
        return {"num_alloc_retries": 3}

    def clock_rate(self, device: int) -> int:
        return 1400 if self.is_hot else 1980

    def power_draw(self, device: int) -> int:
        return 650_000

    def temperature(self, device: int) -> int:
        return 80


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_it_is_read_once_a_second(device: Device, tmp_path: Path) -> None:
    file, clock = WatchFile(tmp_path / "run.watch"), DeviceClock(-S)
    file.put_text({"begun_unix_ns": 0, "created_unix_ns": 0})
    for device.ns in range(0, 3 * S, S // 10):
        if row := clock.read_if_due():
            file.add_device(row)
            file.flush()
    assert read_watched_run(file.path).device.tolist() == [
        (S, 1980, 650, 80, 0, 3),
        (2 * S, 1980, 650, 80, 0, 3),
        (3 * S, 1400, 650, 80, 0x40, 3),
    ]


@pytest.mark.parametrize(("hours", "most"), [(0.05, 180), (8, 1_700)])
def test_it_is_read_less_often_in_a_long_run(device: Device, hours: float, most: int) -> None:
    clock, readings = DeviceClock(0), 0
    for device.ns in range(0, round(hours * 3600) * S, S):
        readings += clock.read_if_due() is not None
    assert most / 2 < readings <= most


def test_a_device_that_does_not_say_is_asked_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(device, "power_draw", asked.append)
    clock = DeviceClock(0)
    for device.ns in range(0, 5 * S, S):
        assert clock.read_if_due() is None
    assert asked == [0]
