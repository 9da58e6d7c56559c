"""An out-of-memory error: what was asked for, where, and what held the memory."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from stepscope.base.numbers import STORAGE_KINDS
from stepscope.record.process_exit import entries_of

_POWERS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {name: 1 << 10 * power for power, name in enumerate(_POWERS)}
_REQUEST = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)")
_DEVICE = re.compile(r"\bGPU (\d+)")
_MESSAGES = (
    "CUDA out of memory",
    "HIP out of memory",
    "DefaultCPUAllocator: ",
    "not enough memory: you tried to allocate",
)


@dataclass(frozen=True)
class AllocationFailure:
    """An allocation that failed."""

    requested_bytes: int | None  # what was asked for; None where the message does not say
    device: str  # `cpu` or `cuda:0`
    file: str = ""  # the innermost line of the script that led there; empty and 0 if there is none
    line: int = 0
    module: str = ""  # path of the innermost module that ran; empty if none did


def find_out_of_memory(error: BaseException) -> AllocationFailure | None:
    """The failed allocation behind an exception; None for any other exception."""
    text = str(error) if isinstance(error, MemoryError | RuntimeError) else ""  # others may notice
    named = type(error).__name__ == "OutOfMemoryError"
    if not (named or isinstance(error, MemoryError) or any(part in text for part in _MESSAGES)):
        return None
    request, gpu = _REQUEST.search(text), _DEVICE.search(text)
    on_gpu = named or gpu is not None
    return AllocationFailure(
        requested_bytes=round(float(request[1]) * _UNITS[request[2]]) if request else None,
        device=f"cuda:{gpu[1] if gpu else 0}" if on_gpu else "cpu",
        module=_module(error.__traceback__),
        **_place(error.__traceback__),
    )


def verdict(failed: AllocationFailure, storages: Iterable[Mapping[str, Any]]) -> str:
    """One sentence: what was asked for, where, and what training held at that moment."""
    asked = f"{size(failed.requested_bytes)} were" if failed.requested_bytes else "memory was"
    where = f" at {failed.file}:{failed.line}" if failed.file else ""
    inside = f" in {failed.module}" if failed.module else ""
    held: dict[str, int] = {}
    for row in storages:
        if row["device"] == failed.device:
            held[row["kind"]] = held.get(row["kind"], 0) + row["bytes"]
    parts = sorted(held.items(), key=lambda item: -item[1])
    kept = ", ".join(f"{STORAGE_KINDS[kind]} {size(amount)}" for kind, amount in parts)
    return (
        f"out of memory on {failed.device}: {asked} requested{where}{inside}"
        f"{f'; kept from step to step: {kept}' if kept else ''}"
    )


def size(amount: int) -> str:
    """Bytes with a unit of 1024, as PyTorch writes them.

    Example:
        >>> size(3 << 29)
        '1.50 GiB'
    """
    unit = next((unit for unit in reversed(_UNITS) if amount >= _UNITS[unit]), "bytes")
    return f"{amount / _UNITS[unit]:.2f} {unit}" if unit != "bytes" else f"{amount} bytes"


def _module(traceback: TracebackType | None) -> str:
    """The innermost module whose call is on the stack, from the frames of `ModuleRanges`."""
    path = ""
    for entry in entries_of(traceback):
        code = entry.tb_frame.f_code
        if code.co_name == "call" and code.co_filename.endswith("module_ranges.py"):
            path = getattr(entry.tb_frame.f_locals.get("node"), "path", path)
    return path


def _place(traceback: TracebackType | None) -> dict[str, Any]:
    from stepscope.record.call_sites import is_internal

    places = [(entry.tb_frame.f_code.co_filename, entry.tb_lineno) for entry in entries_of(traceback)]
    own = [(file, line) for file, line in places if not is_internal(file)]
    return {"file": own[-1][0], "line": own[-1][1]} if own else {}
