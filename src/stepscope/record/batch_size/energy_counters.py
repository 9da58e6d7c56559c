"""Power by the hardware's own energy counters: NVML of NVIDIA's GPUs, RAPL of CPUs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LEAST_S = 0.5  # counters are renewed every 20 to 100 ms
_POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"
Counter = Callable[[], float]  # joules since an unknown time


class PowerMeter:
    """Mean power from its making to a reading."""

    def __init__(self, source: str, counters: Iterable[Counter]) -> None:
        self._source = source
        self._counters = list(counters)
        self._begun = time.perf_counter()
        self._before = [read() for read in self._counters]

    def reading(self) -> dict[str, Any] | None:
        """`{"watts", "seconds", "source"}`; None if there are no counters, or too little time."""
        seconds = time.perf_counter() - self._begun
        if not self._counters or seconds < _LEAST_S:
            return None
        joules = sum(read() - before for read, before in zip(self._counters, self._before, strict=True))
        return {"watts": joules / seconds, "seconds": seconds, "source": self._source}


def gpu_counters(uuids: Iterable[str]) -> list[Counter]:
    """Counters of NVIDIA GPUs by UUID (`GPU-…`); none if any of them has none.

    Source: NVIDIA, NVML reference, nvmlDeviceGetTotalEnergyConsumption (Volta or newer).
    """
    try:
        library = ctypes.CDLL(_NVML)
        if library.nvmlInit_v2():
            return []
        counters = [_gpu_counter(library, uuid) for uuid in uuids]
        for read in counters:
            read()
    except (OSError, AttributeError):
        return []
    return counters


def _gpu_counter(library: Any, uuid: str) -> Counter:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        raise OSError(f"no GPU {uuid}")

    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
            raise OSError(f"no energy counter of GPU {uuid}")
        return millijoules.value / 1e3

    return read


def cpu_counters(folder: Path = _POWERCAP) -> list[Counter]:
    """Counters of all CPU packages, whatever runs on them; none if one cannot be read.

    Source: the Linux kernel, Documentation/power/powercap/powercap.rst.
    """
    try:
        packages = [package for package in folder.glob("intel-rapl:*") if package.name.count(":") == 1]
        return [_package_counter(package) for package in packages]
    except (OSError, ValueError):
        return []


def _package_counter(package: Path) -> Counter:
    file = package / "energy_uj"
    whole = int((package / "max_energy_range_uj").read_text())
    last, turns = int(file.read_text()), 0

    def read() -> float:
        nonlocal last, turns
        now = int(file.read_text())
        turns += now < last  # the counter began again
        last = now
        return (turns * whole + now) / 1e6

    return read
