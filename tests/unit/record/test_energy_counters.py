"""Energy counters of GPUs and CPUs, as the drivers give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.record.batch_size import measured_steps
from stepscope.record.batch_size.measured_steps import PowerMeter, cpu_counters, gpu_counters
from stepscope.record.unreplaced import time


class Nvml:
    """NVIDIA's library, with one GPU per UUID."""

    def __init__(self, **millijoules: int) -> None:
        self.millijoules = millijoules
        self.uuids = list(millijoules)

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        name = uuid.decode()
        if name not in self.uuids:
            return 6
        handle._obj.value = self.uuids.index(name) + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, found: Any) -> int:
        energy = self.millijoules[self.uuids[handle.value - 1]]
        found._obj.value = max(energy, 0)
        return 3 if energy < 0 else 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def package(folder: Path, name: str, energy_uj: int, whole: int = 1000_000_000) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "max_energy_range_uj").write_text(f"{whole}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


def test_power_of_all_gpus_in_use(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    library = Nvml(a=5000, b=7000, other=1)
    monkeypatch.setattr(measured_steps.ctypes, "CDLL", lambda name: library)
    meter = PowerMeter("NVML", gpu_counters(["a", "b"]))
    clock[0] += 2
    library.millijoules |= {"a": 105_000, "b": 307_000, "other": 10**9}
    assert meter.reading() == {"watts": 200.0, "source": "NVML"}


@pytest.mark.parametrize("uuids", [["c"], ["a", "old"]])
def test_a_gpu_without_a_counter_has_no_power(monkeypatch: pytest.MonkeyPatch, uuids: list[str]) -> None:
    monkeypatch.setattr(measured_steps.ctypes, "CDLL", lambda name: Nvml(a=5, old=-1))
    assert gpu_counters(uuids) == []


def test_without_the_driver_there_is_no_power(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(measured_steps.ctypes, "CDLL", missing)
    meter = PowerMeter("NVML", gpu_counters(["a"]))
    clock[0] += 2
    assert meter.reading() is None


def test_power_of_cpu_packages_over_a_wrap(tmp_path: Path, clock: list[float]) -> None:
    first = package(tmp_path, "intel-rapl:0", 10_000_000)
    second = package(tmp_path, "intel-rapl:1", 990_000_000)
    package(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    meter = PowerMeter("RAPL", cpu_counters(tmp_path))
    clock[0] += 1
    (first / "energy_uj").write_text("50000000")
    (second / "energy_uj").write_text("10000000")  # 20 J more, from the beginning again
    assert meter.reading() == {"watts": 60.0, "source": "RAPL"}


def test_a_package_that_cannot_be_read_has_no_power(tmp_path: Path) -> None:
    (package(tmp_path, "intel-rapl:0", 1) / "energy_uj").unlink()
    assert cpu_counters(tmp_path) == []
    assert cpu_counters(tmp_path / "nowhere") == []


def test_too_little_time_gives_no_power(tmp_path: Path, clock: list[float]) -> None:
    package(tmp_path, "intel-rapl:0", 1)
    meter = PowerMeter("RAPL", cpu_counters(tmp_path))
    clock[0] += 0.2
    assert meter.reading() is None
