"""What a profile's own programs say of its events: scope, source line, kind and work.

Source: xplane_schema.cc (https://github.com/openxla/xla, xla/tsl/profiler/utils) for the names of
stats. `flops` and `bytes_accessed` are XLA's own; TPUs record them. What is counted here from the
shapes of the program has names of its own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.arrays import Codes
from stepscope.ingest.distinct_rows import distinct_rows
from stepscope.ingest.xplane.hlo import Instruction, Programs
from stepscope.ingest.xplane.hlo_graphs import instructions_of_graph
from stepscope.ingest.xplane.hlo_inputs import Input
from stepscope.ingest.xplane.hlo_origins import Origin
from stepscope.ingest.xplane.xevents import Batch
from stepscope.ingest.xplane.xjson import Further, parts_of
from stepscope.ingest.xplane.xspace import Plane
from stepscope.trace.interner import Interner
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import FRAMES, INPUTS, KERNEL_KINDS, ORIGINS
from stepscope.trace.table import Table, Text

_TYPE = re.compile(r":+([A-Z_]\w*)?$")  # TensorFlow ends the scope with the operation's type


class CompiledEvents:
    """Looks up the instruction that each event executes; `words` are texts by their codes."""

    def __init__(self, programs: Programs, words: Interner[str]) -> None:
        self._programs, self._words = programs, words
        self._origins: Interner[tuple[tuple[Origin, ...], tuple[Input, ...], str]] = Interner()
        self._graphs: dict[tuple[int, int, tuple[int, ...]], Codes] = {}
        self._first = [0]  # the row of the first origin of each; at the end the number of rows

    def of(self, plane: Plane, batch: Batch) -> tuple[Codes, Codes, Codes, Further]:
        """Codes of each event's scope, as compiled, else as recorded, of its kind, its origins.

        Returns:
            Each shape (events,), -1 if unknown; and further arguments from its instruction.
        """
        keys, which = distinct_rows(
            self._recorded_scopes(plane, batch),
            self._operations(plane, batch),
            batch.texts("hlo_module"),
            batch.integers("program_id"),
        )
        words = list(self._words)
        found = [self._instruction(words, *key) for key in keys]
        recorded = [_TYPE.sub("", words[key[0]]) if key[0] >= 0 else "" for key in keys]
        scopes = [
            self._scope(instruction.scope or text)
            for instruction, text in zip(found, recorded, strict=True)
        ]
        kinds = [_kind(instruction) for instruction in found]
        further = Further([parts_of(_arguments(instruction)) for instruction in found], which)
        origins = [self._origin(instruction) for instruction in found]
        scope, kind, origin = (np.array(c, np.int64)[which] for c in (scopes, kinds, origins))
        return scope, kind, origin, further

    def _origin(self, instruction: Instruction) -> int:
        """The row of an instruction's first origin, -1 without any."""
        if not instruction.origins:
            return -1
        code = self._origins[instruction.origins, instruction.inputs, instruction.role]
        if code == len(self._first) - 1:
            self._first.append(self._first[-1] + len(instruction.origins))
        return self._first[code]

    def tables(self) -> dict[str, Table]:
        """The origins of all events, what they take, and the frames that they refer to."""
        rows = [origin for origins, _, _ in self._origins for origin in origins]
        groups = zip(self._first, self._origins, strict=False)
        inputs = [
            (first, taken)
            for first, (_, all_taken, _) in groups
            for taken in all_taken
            if taken.argument or taken.scope
        ]
        sizes = np.diff(self._first)
        frames = list(self._programs.frames)
        return {
            "origins": Table(
                ORIGINS,
                {
                    "first": np.repeat(self._first[:-1], sizes),
                    "scope": Text.of(origin.scope for origin in rows),
                    "frame": [origin.frame for origin in rows],
                    "share": [origin.share for origin in rows],
                    "role": Text.of(
                        role or None for origins, _, role in self._origins for _ in origins
                    ),
                },
            ),
            "inputs": Table(
                INPUTS,
                {
                    "first": [first for first, _ in inputs],
                    "argument": Text.of(taken.argument or None for _, taken in inputs),
                    "scope": Text.of(taken.scope or None for _, taken in inputs),
                    "frame": [taken.frame for _, taken in inputs],
                },
            ),
            "frames": Table(
                FRAMES,
                {
                    "parent": [frame.parent for frame in frames],
                    "function": Text.of(frame.function for frame in frames),
                    "file": Text.of(frame.file for frame in frames),
                    "line": [frame.line for frame in frames],
                },
            ),
        }

    def _recorded_scopes(self, plane: Plane, batch: Batch) -> Codes:
        """The scope of each event: its own, or that of an operation of TensorFlow."""
        recorded = batch.texts("tf_op")
        of_kind = batch.per_kind(lambda kind: self._operation(plane, kind))
        return np.where(recorded < 0, of_kind, recorded)

    def _operation(self, plane: Plane, kind: int) -> int:
        name = plane.kinds[kind].operation if kind in plane.kinds else ""
        return self._words[name] if name else -1

    def _operations(self, plane: Plane, batch: Batch) -> Codes:
        """The instruction of each event; on a TPU, which names the program alone, the event's.

        Kernels of CUDA graphs name the graph: theirs follows from the program's order.
        """
        operation = self._of_graphs(plane, batch, batch.texts("hlo_op"))
        unnamed = (operation < 0) & (batch.integers("program_id") >= 0)
        if not unnamed.any():
            return operation
        return np.where(unnamed, batch.per_kind(lambda kind: self._name(plane, kind)), operation)

    def _of_graphs(self, plane: Plane, batch: Batch, operation: Codes) -> Codes:
        rows = np.flatnonzero((batch.integers("cuda_graph_node_id") >= 0) & (operation >= 0))
        if not len(rows):
            return operation
        module, program = batch.texts("hlo_module"), batch.integers("program_id")
        launch = batch.integers("correlation_id")
        rows = rows[np.lexsort((batch.offset_ps[rows], launch[rows], program[rows]))]
        starts = np.flatnonzero(begins_run(launch[rows]) | begins_run(program[rows]))
        names = batch.per_kind(lambda kind: self._name(plane, kind))
        result, words = operation.copy(), list(self._words)
        for graph in np.split(rows, starts[1:]):
            first = graph[0]
            key = int(program[first]), int(module[first]), tuple(names[graph].tolist())
            if key not in self._graphs:
                self._graphs[key] = self._instructions_of(words, *key, int(operation[first]))
            found = self._graphs[key]
            result[graph] = np.where(found < 0, result[graph], found)
        return result

    def _instructions_of(
        self, words: list[str], program: int, module: int, kernels: tuple[int, ...], operation: int
    ) -> Codes:
        """Codes of the instructions of a graph's kernels, -1 where they are named or not known."""
        name_of = words[module] if module >= 0 else ""
        found = [""] * len(kernels)
        if self._programs.find(program, name_of, words[operation]) == Instruction():
            sequence = self._programs.sequence(program, name_of)
            found = instructions_of_graph([words[kernel] for kernel in kernels], sequence)
        return np.array([self._words[name] if name else -1 for name in found], np.int64)

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
