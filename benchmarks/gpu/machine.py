"""The environment of the results: the device, its driver and clocks, and software versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.commit import commit

Json = dict[str, Any]
_PACKAGES = ("torch", "triton", "transformers", "nvidia-cuda-cupti", "numpy", "pyarrow", "msgspec", "duckdb")
_CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_CARD = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "persistence_mode")


def machine_facts(device: str) -> Json:
    """The facts about this machine to store with a measurement."""
    return {
        "device": device_facts() if device == "cuda" else {"name": "cpu"},
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "commit": commit(),
    }


def device_facts() -> Json:
    """The GPU that PyTorch uses."""
    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name,
        "memory_bytes": about.total_memory,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        **_of_card(_CARD),
    }


def clocks() -> Json:
    """Clock rates, power and temperature at this moment."""
    return _of_card(_CLOCKS)


def _of_card(fields: tuple[str, ...]) -> Json:
    """Fields of nvidia-smi for the first card, with units; empty if it cannot run."""
    said = _said("nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    values = [value.strip() for value in said.split(",")] if said else []
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}


def _said(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
