"""What a profile's own programs say of its events: scope, source line, kind and work.

Source: xplane_schema.cc (https://github.com/openxla/xla, xla/tsl/profiler/utils) for the names of
stats. `flops` and `bytes_accessed` are XLA's own; TPUs record them. What is counted here from the
shapes of the program has names of its own.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.base.arrays import Integers
from stepscope.read.shared import columns_of
from stepscope.read.xplane.hlo import HloPrograms, Instruction
from stepscope.read.xplane.hlo_inputs import Input, Origin
from stepscope.read.xplane.xevents import Batch, Further, parts_of
from stepscope.read.xplane.xspace import Plane
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import FRAMES, INPUTS, KERNEL_KINDS, ORIGINS
from stepscope.trace.sets import Interner, distinct_rows
from stepscope.trace.table import Table

_TYPE = re.compile(r"(?<!:):+([A-Z_]\w*)?$")  # TensorFlow ends the scope with the operation's type


class CompiledEvents:
    """Looks up the instruction that each event executes; `words` are texts by their codes."""

    def __init__(self, programs: HloPrograms, words: Interner[str]) -> None:
        self._programs, self._words = programs, words
        self._origins: Interner[tuple[tuple[Origin, ...], tuple[Input, ...], str]] = Interner()
        self._graphs: dict[tuple[int, int, tuple[int, ...]], Integers] = {}
        self._first = [0]  # the row of the first origin of each; at the end the number of rows

    def of(self, plane: Plane, batch: Batch) -> tuple[Integers, Integers, Integers, Further]:
        """Codes of each event's scope, as compiled, else as recorded, of its kind, its origins.

        -1 if unknown; and further arguments from its instruction.
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
        texts = [instruction.scope or text for instruction, text in zip(found, recorded, strict=True)]
        # A text without a slash names an argument, or nothing.
        scopes = [self._words[text] if "/" in text else -1 for text in texts]
        kinds = list(map(_kind, found))
        further = Further([parts_of(_arguments(instruction)) for instruction in found], which)
        origins = list(map(self._origin, found))
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
        groups = list(zip(self._first, self._origins, strict=False))
        origins = [
            (first, origin.scope, origin.frame, origin.share, role or None)
            for first, (made, _, role) in groups
            for origin in made
        ]
        inputs = [
            (first, taken.argument or None, taken.scope or None, taken.frame)
            for first, (_, all_taken, _) in groups
            for taken in all_taken
            if taken.argument or taken.scope
        ]
        frames = list(self._programs.frames)
        return {
            "origins": Table(ORIGINS, columns_of(("first", "scope", "frame", "share", "role"), origins)),
            "inputs": Table(INPUTS, columns_of(("first", "argument", "scope", "frame"), inputs)),
            "frames": Table(FRAMES, columns_of(("parent", "function", "file", "line"), frames)),
        }

    def _recorded_scopes(self, plane: Plane, batch: Batch) -> Integers:
        """The scope of each event: its own, or that of an operation of TensorFlow."""
        recorded = batch.texts("tf_op")
        of_kind = batch.per_kind(lambda kind: self._operation(plane, kind))
        return np.where(recorded < 0, of_kind, recorded)

    def _operation(self, plane: Plane, kind: int) -> int:
        name = plane.kinds[kind].operation if kind in plane.kinds else ""
        return self._words[name] if name else -1

    def _operations(self, plane: Plane, batch: Batch) -> Integers:
        """The instruction of each event; on a TPU, which names the program alone, the event's.

        Kernels of CUDA graphs name the graph: theirs follows from the program's order.
        """
        operation = self._of_graphs(plane, batch, batch.texts("hlo_op"))
        unnamed = (operation < 0) & (batch.integers("program_id") >= 0)
        if not unnamed.any():
            return operation
        return np.where(unnamed, batch.per_kind(lambda kind: self._name(plane, kind)), operation)

    def _of_graphs(self, plane: Plane, batch: Batch, operation: Integers) -> Integers:
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
    ) -> Integers:
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

    def _instruction(self, words: list[str], scope: int, op: int, module: int, program: int) -> Instruction:
        if op < 0:
            return Instruction()
        return self._programs.find(program, words[module] if module >= 0 else "", words[op])


def _kind(instruction: Instruction) -> int:
    work = instruction.work
    return KERNEL_KINDS.index(work.kind) if work and work.kind else -1


def _arguments(instruction: Instruction) -> dict[str, Any]:
    found: dict[str, Any] = {"source": instruction.source}
    if work := instruction.work:
        found |= {"flops_from_shapes": work.flops, "bytes_from_shapes": work.bytes}
        if work.width:
            found |= {"product_flops_from_shapes": work.product_flops, "operand_bytes": work.width}
            found |= {"product_sizes": "x".join(map(str, work.sizes))}
    return found


_NUMBER = re.compile(r"[._]\d+$")
_COPY = re.compile(r"^memcpy", re.IGNORECASE)
_SET = re.compile(r"^memset", re.IGNORECASE)
_LAUNCHED = ("fusion", "custom-call", "copy", "copy-start", "sort", "fft", "scatter")
_LIBRARY, _OTHER = "library", "other"


def instructions_of_graph(kernels: Sequence[str], program: Sequence[tuple[str, str]]) -> list[str]:
    """The name of the instruction of each kernel, empty if unknown; all are in the order of execution.

    A name that occurs once in both is found wherever it is. Of others the families are compared,
    names without their numbers: if a family has as many kernels as instructions, they are paired in
    order. A kernel of a library is the next call of one after the instruction of the kernel before,
    or the first that is left.
    """
    launched = [(name, opcode) for name, opcode in program if opcode in _LAUNCHED]
    by_kernel = {_as_kernel(name): at for at, (name, _) in enumerate(launched)}
    once = {name for name, count in Counter(kernels).items() if count == 1}
    found = {at: by_kernel[name] for at, name in enumerate(kernels) if name in once and name in by_kernel}
    families = [_family_of_kernel(name, by_kernel) for name in kernels]
    found |= _by_family(families, _families(launched, set(families)), found)
    found |= _of_libraries(families, launched, found)
    names = [launched[found[at]][0] if at in found else "" for at in range(len(kernels))]
    return _with_memory_set(kernels, names)


def _by_family(ours: Sequence[str], theirs: Sequence[str], found: dict[int, int]) -> dict[int, int]:
    """Pairs of families with as many kernels as instructions, in order."""
    taken = set(found.values())
    kernels, instructions = defaultdict(list), defaultdict(list)
    for at, family in enumerate(ours):
        if at not in found and family != _LIBRARY:
            kernels[family].append(at)
    for at, family in enumerate(theirs):
        if at not in taken:
            instructions[family].append(at)
    result: dict[int, int] = {}
    for family, places in kernels.items():
        if len(places) == len(instructions[family]):
            result.update(zip(places, instructions[family], strict=True))
    return result


def _of_libraries(
    ours: Sequence[str], launched: Sequence[tuple[str, str]], found: dict[int, int]
) -> dict[int, int]:
    """The next free call of a library after the instruction of the kernel before."""
    calls = [at for at, (_, opcode) in enumerate(launched) if opcode == "custom-call"]
    following = list(range(len(calls) + 1))  # a free place, or one nearer to the next free one
    result: dict[int, int] = {}
    last = -1
    for at, family in enumerate(ours):
        last = found.get(at, last)
        if family == _LIBRARY and at not in found and len(result) < len(calls):
            free = _next_free(following, bisect_right(calls, last))
            free = _next_free(following, 0) if free == len(calls) else free
            following[free] = free + 1
            last = result[at] = calls[free]
    return result


def _next_free(following: list[int], place: int) -> int:
    """The first free place from `place` on; paths are halved, so that many are found in little time."""
    while following[place] != place:
        following[place] = following[following[place]]
        place = following[place]
    return place


def _as_kernel(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _family_of_kernel(name: str, by_kernel: dict[str, int]) -> str:
    if _SET.match(name):
        return ""
    if name in by_kernel:
        return _NUMBER.sub("", name)
    return _OTHER if _COPY.match(name) else _LIBRARY


def _families(launched: Sequence[tuple[str, str]], known: set[str]) -> list[str]:
    names = (_NUMBER.sub("", _as_kernel(name)) for name, _ in launched)
    return [
        _LIBRARY if opcode == "custom-call" else name if name in known else _OTHER
        for name, (_, opcode) in zip(names, launched, strict=True)
    ]


def _with_memory_set(kernels: Sequence[str], names: list[str]) -> list[str]:
    """Names where memory is set for the kernel that follows."""
    following = ""
    for at in reversed(range(len(names))):
        if _SET.match(kernels[at]):
            names[at] = following
        following = names[at]
    return names
