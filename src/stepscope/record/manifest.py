"""manifest.json: who recorded what, in which framework, and how it ended."""

import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.record.capture_file import FORMAT, VERSION
from stepscope.record.options import Rank, RecordOptions
from stepscope.record.unreplaced import time
from stepscope.version import __version__


@dataclass(frozen=True)
class Run:
    """The run, as known before anything is recorded."""

    command: Sequence[str]
    options: RecordOptions
    cwd: str = field(default_factory=os.getcwd)
    rank: Rank = field(default_factory=Rank.from_environment)
    created_unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True)
class RunResult:
    """The outcome of a recording, with keys of manifest.json (docs/reference/capture_format.md)."""

    outcome: str
    message: str
    steps_seen: int = 0
    steps_recorded: Sequence[int] = ()
    step_ends_after: str | None = None
    step_is: str | None = None
    warnings: Sequence[str] = ()
    compiles_again: bool = False
    loaders: Sequence[dict[str, Any]] = ()
    created: Sequence[dict[str, Any]] = ()
    updated_modules: dict[str, list[str]] = field(default_factory=dict)
    recorded_steps: dict[str, Any] | None = None
    unrecorded_steps: dict[str, Any] | None = None
    run_shares: dict[str, Any] | None = None


def build_manifest(run: Run, result: RunResult, framework: str | None = None) -> dict[str, Any]:
    """The content of manifest.json; `framework` by default is the loaded one."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "stepscope": __version__,
        "created_unix_ns": run.created_unix_ns,
        "command": list(run.command),
        "cwd": run.cwd,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        # A container or scheduler may limit the cores that this process may run on.
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **describe_framework(framework),
        **asdict(run.rank),
        **asdict(result),
        "options": asdict(run.options),
    }


Json = dict[str, Any]


def describe_framework(name: str | None = None) -> Json:
    """A framework's name, version, threads, capability, precision and devices, for manifest.json.

    By default it is the loaded one, PyTorch where both `pytorch` and `jax` are.
    """
    unknown = dict.fromkeys(("framework", "framework_version", "threads", "cpu_capability"))
    facts: Json = {**unknown, "devices": []}
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and name != "jax":
        facts |= {
            "framework": "pytorch",
            "framework_version": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "cpu_capability": _said(lambda: torch.backends.cpu.get_cpu_capability()),
            "matmul_precision": _said(lambda: torch.get_float32_matmul_precision()),
            "devices": list(_devices_of_torch(torch)),
        }
    elif jax is not None:
        version = getattr(jax, "__version__", None)
        facts |= {
            "framework": "jax",
            "framework_version": None if version is None else str(version),
            "devices": list(_devices_of_jax(jax)),
        }
    return facts


def _said(ask: Callable[[], object]) -> str | None:
    """What PyTorch says: the instructions of the CPU for which it chooses its kernels, or whether FP32
    products may run in TF32 (`high`, `medium`); None in old versions, and as of 2.9 where devices differ.

    Not by `torch.ops`: who counts operators would see that.
    """
    try:
        return str(ask())
    except (AttributeError, RuntimeError):
        return None


def _devices_of_torch(torch: Any) -> Iterator[Json]:
    if not torch.cuda.is_initialized():  # to ask whether it is available would initialize the driver
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield {
            "type": "cuda",
            "index": index,
            "name": properties.name,
            "memory_bytes": properties.total_memory,
        }


def _devices_of_jax(jax: Any) -> Iterator[Json]:
    """The devices of this process, without the CPU."""
    if not getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        return
    for index, device in enumerate(jax.local_devices()):
        if device.platform != "cpu":
            yield {
                "type": device.platform,
                "index": index,
                "name": device.device_kind,
                "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
            }
