"""What a profile's own programs say of its events: scope, source line, kind and work.

Source: xplane_schema.cc (https://github.com/openxla/xla, xla/tsl/profiler/utils) for the names of
stats. `flops` and `bytes_accessed` are XLA's own; TPUs record them. What is counted here from the
shapes of the program has names of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Codes
from stepscope.ingest.distinct_rows import distinct_rows
from stepscope.ingest.xplane.hlo import Instruction, Programs
from stepscope.ingest.xplane.xevents import Batch
from stepscope.ingest.xplane.xjson import Further, parts_of
from stepscope.ingest.xplane.xspace import Plane
from stepscope.trace.interner import Interner
from stepscope.trace.schema import KERNEL_KINDS


class CompiledEvents:
    """Looks up the instruction that each event executes; `words` are texts by their codes."""

    def __init__(self, programs: Programs, words: Interner[str]) -> None:
        self._programs, self._words = programs, words

    def of(self, plane: Plane, batch: Batch) -> tuple[Codes, Codes, Further]:
        """Codes of each event's scope, as compiled, else as recorded, and of its kind.

        Returns:
            Both, shape (events,), -1 if unknown; and what else its instruction tells.
        """
        keys, which = distinct_rows(
            batch.texts("tf_op"),
            self._operations(plane, batch),
            batch.texts("hlo_module"),
            batch.integers("program_id"),
        )
        words = list(self._words)
        found = [self._instruction(words, *key) for key in keys]
        recorded = [words[key[0]].rstrip(":") if key[0] >= 0 else "" for key in keys]
        scopes = [
            self._scope(instruction.scope or text)
            for instruction, text in zip(found, recorded, strict=True)
        ]
        kinds = [_kind(instruction) for instruction in found]
        further = Further([parts_of(_arguments(instruction)) for instruction in found], which)
        return np.array(scopes, np.int64)[which], np.array(kinds, np.int64)[which], further

    def _operations(self, plane: Plane, batch: Batch) -> Codes:
        """The instruction of each event; on a TPU, which names the program alone, the event's."""
        operation = batch.texts("hlo_op")
        unnamed = (operation < 0) & (batch.integers("program_id") >= 0)
        if not unnamed.any():
            return operation
        return np.where(unnamed, batch.per_kind(lambda kind: self._name(plane, kind)), operation)

    def _name(self, plane: Plane, kind: int) -> int:
        found = plane.kinds.get(kind)
        return self._words[found.display_name or found.name] if found else -1

    def _instruction(
        self, words: list[str], scope: int, op: int, module: int, program: int
    ) -> Instruction:
        if op < 0:
            return Instruction()
        return self._programs.find(program, words[module] if module >= 0 else "", words[op])

    def _scope(self, text: str) -> int:
        return self._words[text] if "/" in text else -1  # else it names an argument, or nothing


def _kind(instruction: Instruction) -> int:
    """Of collectives none: their names identify them, also where there is no program."""
    work = instruction.work
    if work is None or work.kind in ("", "communication"):
        return -1
    return KERNEL_KINDS.index(work.kind)


def _arguments(instruction: Instruction) -> dict[str, Any]:
    found: dict[str, Any] = {"source": instruction.source}
    if work := instruction.work:
        found |= {"flops_from_shapes": work.flops, "bytes_from_shapes": work.bytes}
        if work.width:
            found |= {"product_flops_from_shapes": work.product_flops, "operand_bytes": work.width}
            found |= {"product_sizes": "x".join(map(str, work.sizes))}
    return found
