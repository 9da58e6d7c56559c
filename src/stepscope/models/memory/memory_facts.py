"""What is known of the memory of a device, and what kinds, lines, stages or modules hold of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Codes, Counts, Ids
from stepscope.models.memory.owners import KINDS
from stepscope.models.memory.segments import Fragmentation

# What forward makes and what is computed from it: what checkpointing and smaller batches reduce.
ACTIVE = [KINDS.index("activations"), KINDS.index("temporaries")]


class MemoryShare(msgspec.Struct, frozen=True):
    """What a kind or a line holds at the peak."""

    name: str
    bytes: int
    count: int


class Growth(msgspec.Struct, frozen=True):
    """Allocations of one call stack that pile up."""

    stack: int  # stacks.id
    count: int  # how many are alive at the end
    bytes: int
    bytes_per_cycle: int  # how much is added each time the memory use rises and falls again
    keeps_graph: bool = False  # whether it is what forward keeps for a backward that never comes


class OutOfMemory(msgspec.Struct, frozen=True):
    """An allocation that failed: what was asked for, and what the device had left, in bytes.

    None where it is not known; `place` and `module` are empty then.
    """

    time_ns: int
    requested: int | None
    device_free: int | None
    allocated: int
    reserved: int | None
    place: str = ""
    module: str = ""


class MemoryFacts(msgspec.Struct, frozen=True):
    """What is known of the memory of one device."""

    source: str
    device: int  # number of the device, -1 for the CPU
    entries: int  # of the device's history; without any, the peak is the state at the snapshot
    peak_bytes: int  # the most that was allocated
    peak_ns: int  # when that was
    reserved_peak_bytes: int | None  # the most that the allocator had reserved; None if it was not recorded
    kinds: tuple[MemoryShare, ...]  # what held memory at the peak, the largest first
    lines: tuple[MemoryShare, ...] = ()  # what held memory at the peak, the largest first
    # how the reserved memory is used at the snapshot; None without one
    fragmentation: Fragmentation | None = None
    growth: tuple[Growth, ...] = ()  # what piles up
    growth_lines: tuple[str, ...] = ()  # the line of each of them
    out_of_memory: tuple[OutOfMemory, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    device_name: str = ""  # `cpu`, `cuda:0`; empty in a snapshot
    stages: tuple[MemoryShare, ...] = ()  # what held the peak, as far as the file names them
    modules: tuple[MemoryShare, ...] = ()  # what held the peak, as far as the file names them
    activation_modules: tuple[MemoryShare, ...] = ()  # what activations and temporaries hold of the peak
    activation_lines: tuple[MemoryShare, ...] = ()  # what activations and temporaries hold of the peak
    unassigned_bytes: int = 0  # what of the peak has no known kind
    unassigned_before_bytes: int = 0  # what of that was allocated before the history
    update_line: str = ""  # the line that calls the optimizer; empty where unknown
    has_lifetimes: bool = True  # whether it is known which release ends which allocation

    @property
    def moment(self) -> str:
        """What the shares are of: the peak, which a snapshot without a history does not show."""
        return "peak" if self.entries else "snapshot"


def shares(size: Counts, group: Codes | Ids, names: Sequence[str]) -> tuple[MemoryShare, ...]:
    """The groups that hold something, the largest first; what is in none is a row without a name.

    Example:
        >>> shares(np.array([1, 2, 4]), np.array([0, 1, 0]), ("weights", "inputs"))[0]
        MemoryShare(name='weights', bytes=5, count=2)
    """
    keys, place = np.unique(group, return_inverse=True)
    total = np.bincount(place, size, len(keys)).astype(np.int64)
    count = np.bincount(place, minlength=len(keys))
    order = [row for row in np.argsort(-total, kind="stable").tolist() if total[row]]
    return tuple(
        MemoryShare(names[keys[row]] if keys[row] >= 0 else "", int(total[row]), int(count[row]))
        for row in order
    )
