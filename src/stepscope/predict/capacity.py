"""How much memory a device has, by its name or as a plain size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.errors import BatchError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?", re.IGNORECASE)
_SAID = re.compile(r"(?<![\w])(\d+) ?G(?:i?B)?\b", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_GIB = 1 << 30
# Memory as the makers' data sheets state it, in GiB; the first name that occurs counts.
_DEVICES = (
    ("H200", 141), ("H100 NVL", 94), ("H100", 80), ("H20", 96), ("GH200", 96), ("B200", 180),
    ("A100", 40), ("A800", 80), ("A40", 48), ("A30", 24),
    ("A10", 24), ("A16", 16), ("A2", 16), ("L40", 48), ("L4", 24), 
    ("V100", 16), ("P100", 16), ("T4", 16), ("RTX 6000 Ada", 48),
    ("RTX A6000", 48), ("RTX A5000", 24), ("RTX A4000", 16), ("5090", 32), ("5080", 16),
    ("5070 Ti", 16), ("5070", 12), ("4090", 24), ("4080", 16), ("4070 Ti Super", 16),
    ("4070", 12), ("4060 Ti 16", 16), ("4060", 8), ("3090", 24), ("3080 Ti", 12), ("3080", 10),
    ("3070", 8), ("3060", 12), ("2080 Ti", 11), ("2080", 8), ("2070", 8), ("1080 Ti", 11),
    ("MI355", 288), ("MI325", 256), ("MI300X", 192), ("MI300A", 128), ("MI250", 128),
    ("MI210", 64), ("MI100", 32), ("7900 XTX", 24),
)  # fmt: skip


@dataclass(frozen=True)
class Capacity:
    """A device to fit into.

    Attributes:
        name: as asked for.
        bytes: its memory.
    """

    name: str
    bytes: int


def find_capacity(text: str) -> Capacity:
    """A size such as `24GB` or `24GiB`, or a device such as `A100` or `RTX 4090`.

    GB is 10^9 bytes, GiB is 2^30. A device's memory is that of its data sheet; what the driver
    and the context take of it is not subtracted.

    Raises:
        BatchError: it is neither.

    Example:
        >>> find_capacity("24GB").bytes, find_capacity("rtx 4090").bytes // 2**30
        (24000000000, 24)
    """
    if match := _SIZE.fullmatch(text.strip()):
        number, unit, binary = match.groups()
        return Capacity(
            text, int(float(number) * (1024 if binary else 1000) ** _POWER[unit.lower()])
        )
    wanted = _plain(text)
    for name, gib in _DEVICES:
        if _plain(name) in wanted:
            said = _SAID.search(text)
            return Capacity(text, (int(said[1]) if said else gib) * _GIB)
    raise BatchError(
        f"expected a capacity such as 24GB or the name of a known device such as A100, found "
        f"{text!r}; give the capacity"
    )


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text).lower()
