"""Memory of a device, by its name or as a plain size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.errors import BatchError
from stepscope.facts.roofline import device_memory_gib

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?", re.IGNORECASE)
_STATED = re.compile(r"(?<![\w])(\d+) ?G(?:i?B)?\b", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_GIB = 1 << 30  # bytes
_MOST_TIMES = 2  # what a device's name says may be so many times what is listed: A100 80GB
_CONTEXT_BYTES = 700_000_000  # of a CUDA context with the libraries that PyTorch loads
_FRAGMENTATION = 0.02  # of a device's memory
_SYSTEM_SHARE = 0.1  # of main memory, for everything else that runs


@dataclass(frozen=True)
class Capacity:
    """A device to fit into.

    Attributes:
        name: as asked for.
        bytes: its memory.
        is_size: whether a plain size was asked for, not a device by its name.
    """

    name: str
    bytes: int
    is_size: bool = False

    @property
    def usable_bytes(self) -> int:
        """Bytes available for tensors: without the device's context and fragmentation."""
        context = min(_CONTEXT_BYTES, self.bytes // 4)
        return round((1 - _FRAGMENTATION) * self.bytes) - context


def usable_bytes(device: Mapping[str, Any]) -> int | None:
    """Bytes for tensors on the device that was measured on; None if its memory is unknown."""
    total = int(device.get("memory_bytes") or 0)
    if not total:
        return None
    if device.get("type") == "cpu":
        return round((1 - _SYSTEM_SHARE) * total)
    return Capacity(str(device.get("name")), total).usable_bytes


def find_capacity(text: str) -> Capacity:
    """A size such as `24GB` or `24GiB`, or a device such as `A100` or `RTX 4090`.

    GB is 10^9 bytes, GiB is 2^30. A device's memory comes from its data sheet;
    `Capacity.usable_bytes` subtracts what the driver and the context take.

    Raises:
        BatchError: it is neither.

    Example:
        >>> find_capacity("24GB").bytes, find_capacity("rtx 4090").bytes // 2**30
        (24000000000, 24)
    """
    match = _SIZE.fullmatch(text.strip())
    if match and not text.lower().endswith("ti"):  # a 3080 Ti
        number, unit, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWER[unit.lower()])
        return Capacity(text, size, is_size=True)
    known = [(name, gib) for name, gib in device_memory_gib().items() if _is_in(name, text)]
    if known:
        _, gib = max(known, key=lambda one: len(one[0]))  # 3080 Ti, not 3080
        stated = _STATED.search(text)
        # A GH200 480GB has that much on its CPU.
        is_its_own = stated is not None and int(stated[1]) <= _MOST_TIMES * gib
        return Capacity(text, (int(stated[1]) if stated and is_its_own else gib) * _GIB)
    raise BatchError(
        f"expected a capacity such as 24GB or a known device such as A100, found {text!r}; give the capacity"
    )


def _is_in(name: str, text: str) -> bool:
    """Whether a text contains a device's name as whole words: A4000 is not A40, GH200 not H200."""
    words = r"[\s_-]*".join(map(re.escape, name.split()))
    before = "[0-9]" if name[0].isdigit() else "[a-z]"
    return re.search(rf"(?<!{before}){words}(?![0-9])", text, re.IGNORECASE) is not None
