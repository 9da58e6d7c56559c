"""Sharding over ranks: each holds its share, and what is gathered for the moment of its use."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from stepscope.memory.lifetimes import Lifetimes
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_memory import RecordedMemory

_MIB = 1 << 20
_GATHERED = 2  # one unit computes while the next one is gathered


def zero_sharded(
    memory: RecordedMemory, stage: int = 2, workers: int = 8, bucket_cap_mb: float = 25.0
) -> RecordedMemory:
    """The memory of one rank under ZeRO.

    Args:
        memory: of the steps of one worker.
        stage: 1 shards optimizer state, 2 also gradients, 3 also parameters.
        workers: how many share.
        bucket_cap_mb: what is communicated at once, MiB.

    Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.
    """
    kinds = ("optimizer state", "gradients", "weights")[: max(1, min(stage, 3))]
    extra = bucket_cap_mb * _MIB * (_GATHERED if stage >= 3 else stage >= 2)
    return _sharded(memory, kinds, workers, int(extra))


def fully_sharded(
    memory: RecordedMemory, unit: str = "", workers: int = 8, unit_mb: float = 25.0
) -> RecordedMemory:
    """The memory of one rank under FSDP.

    Args:
        memory: of the steps of one worker.
        unit: glob for the paths of the modules that are units.
        workers: how many share.
        unit_mb: without `unit`, the size of a unit, MiB.
    """
    largest = _largest_unit(memory, unit) if unit else int(unit_mb * _MIB)
    kinds = ("optimizer state", "gradients", "weights")
    return _sharded(memory, kinds, workers, _GATHERED * largest)


def _sharded(
    memory: RecordedMemory, kinds: tuple[str, ...], workers: int, extra: int
) -> RecordedMemory:
    life = memory.lifetimes
    shared = np.isin(life.kind, [KINDS.index(name) for name in kinds])
    share = np.where(shared, -(-life.bytes // workers), life.bytes)
    held = int(life.bytes[life.kind == KINDS.index("weights")].sum())
    gathered = Lifetimes(
        bytes=np.array([min(extra, held)]), start=np.array([-np.inf]), end=np.array([np.inf]),
        kind=np.array([KINDS.index("temporaries")]), recorded=np.array([-1]),
    )  # fmt: skip
    return memory.with_lifetimes(life.changed(bytes=share).plus(gathered))


def _largest_unit(memory: RecordedMemory, glob: str) -> int:
    """Bytes of the parameters of the largest module that matches."""
    storages = memory.recording.trace["storages"]
    mine = storages.text("kind").mask("parameter") & storages.text("moment").mask("before")
    sizes: dict[str, int] = {}
    for row in np.flatnonzero(mine).tolist():
        parts = (storages.text("path")[row] or "").split(".")
        prefixes = (".".join(parts[: n + 1]) for n in range(len(parts)))
        found = next((path for path in prefixes if fnmatchcase(path, glob)), "")
        sizes[found] = sizes.get(found, 0) + int(storages["bytes"][row])
    return max(sizes.values(), default=0)
