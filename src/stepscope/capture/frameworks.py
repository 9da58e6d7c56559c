"""The loaded training framework and its devices; nothing is imported or initialized for this."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def describe_framework(name: str | None = None) -> Json:
    """The framework's name, version, threads, capability of the CPU and devices, for manifest.json.

    Args:
        name: `pytorch` or `jax`; by default the loaded framework, PyTorch where both are.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and name != "jax":
        return {
            "framework": "pytorch",
            "framework_version": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "cpu_capability": _capability(torch),
            "devices": list(_devices_of_torch(torch)),
        }
    if jax is not None:
        return {
            "framework": "jax",
            "framework_version": _version(jax),
            "threads": None,
            "cpu_capability": None,
            "devices": list(_devices_of_jax(jax)),
        }
    return {
        "framework": None,
        "framework_version": None,
        "threads": None,
        "cpu_capability": None,
        "devices": [],
    }


def _version(module: Any) -> str | None:
    version = getattr(module, "__version__", None)
    return None if version is None else str(version)


def _capability(torch: Any) -> str | None:
    """The instructions of the CPU for which PyTorch chooses its kernels; None in old versions.

    Not by `torch.ops`: who counts operators would see that.
    """
    try:
        return str(torch.backends.cpu.get_cpu_capability())
    except AttributeError:
        return None


def _devices_of_torch(torch: Any) -> Iterator[Json]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        yield {
            "type": "cuda",
            "index": index,
            "name": found.name,
            "memory_bytes": found.total_memory,
        }


def _devices_of_jax(jax: Any) -> Iterator[Json]:
    """The devices of this process, without the CPU."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if not getattr(bridge, "_backends", None):
        return
    for index, device in enumerate(jax.local_devices()):
        if device.platform != "cpu":
            yield {
                "type": device.platform,
                "index": index,
                "name": device.device_kind,
                "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
            }
