"""Memory that is in no cache of the processor, as gradients are by the time they are sent.

Imports torch; only for the measuring process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor

_BYTES = 1 << 28  # several times what caches keep for one process
_FLOAT = 4
_PARTS = 64  # more than a measurement has calls


def cold_arrays(count: int) -> list[Tensor]:
    """Float arrays of equal length that together are larger than caches."""
    return [torch.rand(_BYTES // _FLOAT // count) for _ in range(count)]


def parts_in_turn(arrays: Sequence[Tensor], elements: int) -> Iterator[tuple[Tensor, ...]]:
    """Parts of the arrays at the same place, without end; one comes again only after all others.

    Args:
        arrays: as `cold_arrays` makes them.
        elements: of a part.
    """
    length = len(arrays[0])
    apart = max(1, length // elements // _PARTS) * elements
    starts = range(0, length - elements + 1, apart)
    return cycle([tuple(one[start : start + elements] for one in arrays) for start in starts])
