"""The module, operator and line of each block of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepscope.annotate.attribution import Attribution
from stepscope.batch_size.peak_memory import PeakAllocation
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class OwnedBytes:
    """Bytes alive with what they belong to; -1 where that is not known."""

    kind: str
    bytes: int
    module: int
    lines: int
    operator: int
    stage: int


def find_memory_owners(
    trace: Trace, attribution: Attribution, blocks: Iterable[PeakAllocation]
) -> list[OwnedBytes]:
    """Find the owner of each block."""
    paths = {str(path): row for row, path in enumerate(trace["modules"].text("path"))}
    return [_holder(block, attribution, paths) for block in blocks]


def _holder(
    block: PeakAllocation, attribution: Attribution, paths: Mapping[str, int]
) -> OwnedBytes:
    if block.storage is not None:
        module = paths.get(block.storage["path"], -1)
        return OwnedBytes(block.kind, block.bytes, module, -1, -1, -1)
    if block.event < 0:
        return OwnedBytes(block.kind, block.bytes, -1, -1, -1, -1)
    event = block.event
    return OwnedBytes(
        block.kind,
        block.bytes,
        int(attribution.module[event]),
        int(attribution.lines[event]),
        int(attribution.operator[event]),
        int(attribution.stage[event]),
    )
