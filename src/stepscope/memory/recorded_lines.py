"""The line of the user's code that each recorded allocation belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.annotate.range_names import Line
from stepscope.arrays import Ids
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.memory.recorded_memory import RecordedMemory
from stepscope.trace.schema import STAGES


@dataclass(frozen=True, eq=False)
class RecordedLines:
    """The lines of a recording.

    Attributes:
        names: `file:line` of the innermost line of each stack, and of those that made parameters.
        code: position in `names` of each recorded allocation, -1 if unknown, shape (recorded,).
        update: position of the line that calls the optimizer, -1 if unknown.
    """

    names: list[str]
    code: Ids
    update: int

    @classmethod
    def of(cls, memory: RecordedMemory) -> RecordedLines:
        """The lines of allocations; optimizer state without one has that of the optimizer."""
        recording = memory.recording
        place = {line: number for number, line in enumerate(_lines(recording))}
        stacks, storages = recording.attribution.stacks, recording.trace["storages"]
        of_stack = np.array([place[one[-1]] if one else -1 for one in stacks] + [-1], np.int64)
        made = zip(storages.text("file"), storages["line"].tolist(), strict=True)
        of_storage = np.array(
            [place.get((file or "", line), -1) for file, line in made] + [-1], np.int64
        )
        code = of_stack[np.append(recording.attribution.lines, -1)[recording.event]]
        code = np.where(recording.storage >= 0, of_storage[recording.storage], code)
        state = memory.lifetimes.kind[: len(code)] == KINDS.index("optimizer state")
        update = _update_line(recording, place)
        return cls(
            names=[f"{file}:{line}" for file, line in place],
            code=np.where(state & (code < 0), update, code).astype(np.int64),
            update=update,
        )

    def name(self, code: int) -> str:
        """`file:line`; empty for -1."""
        return self.names[code] if code >= 0 else ""


def _lines(recording: AllocationRecord) -> dict[Line, None]:
    storages = recording.trace["storages"]
    made = zip(storages.text("file"), storages["line"].tolist(), strict=True)
    stacks = [stack[-1] for stack in recording.attribution.stacks if stack]
    return dict.fromkeys([*stacks, *((file or "", line) for file, line in made if line >= 0)])


def _update_line(recording: AllocationRecord, place: Mapping[Line, int]) -> int:
    """The line that calls the optimizer, which made its state before the recording."""
    attribution = recording.attribution
    updating = attribution.stage == STAGES.index("optimizer")
    rows = np.flatnonzero(updating & (attribution.lines >= 0))
    if not len(rows):
        return -1
    codes, count = np.unique(attribution.lines[rows], return_counts=True)
    stack = attribution.stacks[int(codes[np.argmax(count)])]
    return place.get(stack[-1], -1) if stack else -1
