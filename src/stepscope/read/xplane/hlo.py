"""The compiled XLA programs of a profile: scope, source line and work of each instruction.

A profile holds the optimized programs themselves. They link each executed instruction or fusion to
the named scope in which JAX traced it and to its line of Python.

Source: hlo.proto and xla_data.proto (https://github.com/openxla/xla, xla), messages HloProto,
HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata and StackFrameIndexProto.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.read.xplane.hlo_flow import FUSED, Loops, ProgramFlow, lenders_of
from stepscope.read.xplane.hlo_inputs import (
    FrameIndex,
    Input,
    Inputs,
    Origin,
    ProgramArgument,
    SourceFrames,
    origins_of_members,
    own_origin,
)
from stepscope.read.xplane.hlo_products import Array, HloShapes, Shape
from stepscope.read.xplane.hlo_work import HloNode, HloWork, ProgramWork
from stepscope.read.xplane.protobuf import BYTES, VARINT, Fields, Span, int32, scan
from stepscope.read.xplane.xspace import Plane, XSpaceFile, read_stats
from stepscope.trace.sets import Interner

METADATA_PLANE = "/host:metadata"
_PROTO = "Hlo Proto"
BY_COMPILER = "xla::"  # before the opcode of an instruction that no operation of JAX asked for
_NUMBERED = re.compile(r"^(.*)\((\d{1,20})\)$")
_LONGEST_NAME = 256  # letters of a program; each of its instructions may repeat it


class Instruction(NamedTuple):
    """One instruction: its named scope as JAX wrote it, `file:line`, work, origins and inputs.

    `role` says what it is for, outside of the two passes (`hlo_flow`).
    """

    scope: str = ""
    source: str = ""
    work: HloWork | None = None
    origins: tuple[Origin, ...] = ()
    inputs: tuple[Input, ...] = ()
    role: str = ""


class HloPrograms:
    """The programs of a file, each read when its first instruction is looked up."""

    def __init__(self, source: XSpaceFile, planes: Iterable[Plane]) -> None:
        self._source = source
        self._by_id: dict[int, Span] = {}
        self._by_name: dict[str, Span] = {}
        self._read: dict[Span, _HloProgram] = {}
        # Of each program that was read, by name; of those with the same name the largest.
        self.buffers: dict[str, dict[str, int]] = {}  # as `buffers_of` has them
        self.shapes: dict[str, dict[str, list[str]]] = {}  # as `shapes_of` has them
        self.loops: dict[str, Loops] = {}  # of those that compute gradients in a loop
        # Of the program with most bytes of them under names, such as `params['Dense_0']`, or most bytes.
        self.arguments: list[ProgramArgument] = []
        self.frames: SourceFrames = Interner()  # to which the origins of instructions refer
        for plane in planes:
            if plane.name == METADATA_PLANE:
                self._add(plane)

    def _add(self, plane: Plane) -> None:
        for number, kind in plane.kinds.items():
            stats = dict(read_stats(self._source, kind.stats, plane.stat_names))
            if isinstance(stats.get(_PROTO), Span):
                found = _NUMBERED.match(kind.name)
                self._by_id[int(found[2]) if found else number] = stats[_PROTO]
                self._by_name.setdefault(found[1] if found else kind.name, stats[_PROTO])

    @property
    def names(self) -> list[str]:
        """The names of the programs."""
        return list(self._by_name)

    def find(self, program: int, module: str, name: str) -> Instruction:
        """An instruction by its program's number, else its program's name; empty if not found."""
        return self._program(program, module).instructions.get(name, Instruction())

    def sequence(self, program: int, module: str) -> list[tuple[str, str]]:
        """Name and opcode of each instruction that a program itself executes, in order."""
        return self._source.spend(self._program(program, module).sequence)

    def _program(self, program: int, module: str) -> "_HloProgram":
        found = _NUMBERED.match(module[:_LONGEST_NAME])
        name_of = found[1] if found else module
        span = self._by_id.get(program) or self._by_name.get(name_of)
        if span is None:
            return _HloProgram({}, [], Loops(), [])
        if span not in self._read:
            found_program = _read_program(self._source, span, self.frames)
            self._read[span] = found_program
            self.arguments = max(self.arguments, found_program.arguments, key=_named_bytes)
            if found_program.loops != Loops():
                self.loops[name_of] = found_program.loops
            self._add_buffers(name_of, span)
        return self._read[span]

    def _add_buffers(self, name: str, proto: Span) -> None:
        for module in self._source.inner(proto, 1):
            found = buffers_of(self._source, module)
            if found["argument_bytes"] >= self.buffers.get(name, {}).get("argument_bytes", 0):
                self.buffers[name] = found
                self.shapes[name] = shapes_of(self._source, module)


def _named_bytes(arguments: list[ProgramArgument]) -> tuple[int, int]:
    """Bytes of the arguments with names below them, and of all: residuals are only numbered."""
    named = sum(argument.bytes for argument in arguments if "['" in argument.name)
    return named, sum(argument.bytes for argument in arguments)


class _HloProgram(NamedTuple):
    """Its instructions by name, which is unique within it, its arguments, loops and sequence."""

    instructions: dict[str, Instruction]
    arguments: list[ProgramArgument]
    loops: Loops
    sequence: list[tuple[str, str]]


def _read_program(source: XSpaceFile, proto: Span, frames: SourceFrames) -> _HloProgram:
    module = next(iter(source.inner(proto, 1)), Span(0, 0))  # a program has one
    reader = _Computations(source, module, frames)
    for computation in source.inner(module, 3):
        reader.read(computation)
    arguments = reader.inputs.with_uses(arguments_of(source, module))
    entry, updated = source.number(module, 6), [one.name for one in arguments if one.updated]
    instructions = reader.instructions(entry, updated)
    return _HloProgram(instructions, arguments, reader.flow.loops(entry), reader.sequence(entry))


class _Computations:
    """Reads the computations of a module; each comes before those that call it."""

    def __init__(self, source: XSpaceFile, module: Span, frames: SourceFrames) -> None:
        self._source = source
        name = "".join(source.text(*span) for span in source.inner(module, 1))
        self._program = f"jit({name.removeprefix('jit_').removeprefix('pmap_')[:_LONGEST_NAME]})"
        self._frames, self._shapes = FrameIndex(source, module, frames), HloShapes(source)
        self._work, self.inputs = ProgramWork(source), Inputs(source)
        self.flow = ProgramFlow(source)
        self._schedule = _schedule(source, module)
        self._executed: dict[int, dict[int, tuple[str, str]]] = {}  # of each computation, by id
        self._found: dict[int, list[tuple[str, Instruction]]] = {}  # of each computation
        self._origins: dict[int, tuple[Origin, ...]] = {}  # of each computation
        self._last_scope: dict[int, str] = {}  # of each computation, to name a fusion without one

    def instructions(self, entry: int, updated: list[str]) -> dict[str, Instruction]:
        """All that were read, by name; gradients help to update the arguments `updated`."""
        scopes = {number: [one.scope for _, one in found] for number, found in self._found.items()}
        roles = self.flow.roles(entry, updated, scopes)
        return {
            name: instruction._replace(role=role)
            for number, found in self._found.items()
            for (name, instruction), role in zip(found, roles.get(number, [""] * len(found)), strict=True)
        }

    def sequence(self, number: int) -> list[tuple[str, str]]:
        """Name and opcode of each instruction of a computation, as it executes them."""
        found = self._executed.get(number, {})
        order = self._schedule.get(number, found)
        return [found[id] for id in order if id in found]

    def read(self, computation: Span) -> None:
        """Read one computation."""
        source, spans = self._source, self._source.inner(computation, 2)
        start, end = np.array(spans, np.int64).reshape(-1, 2).T
        found = scan(source.octets, start, end, source.damage)
        names = _texts(source, found.of(1, BYTES), len(spans))
        scopes, places, frames = _metadata(source, found.of(7, BYTES), len(spans), self._frames)
        own_scopes, own = list(scopes), list(map(own_origin, scopes, frames))
        nodes = self._nodes(found, spans)
        for row, node in enumerate(nodes):
            inside = (self._last_scope.get(number, "") for number in node.called)
            scopes[row] = scopes[row] or next(filter(None, inside), "")
        number, root = source.number(computation, 5), source.number(computation, 6)
        if number in self._found:
            source.damage.add()
            return
        self.flow.add(number, root, nodes, own_scopes)
        self._executed[number] = {
            node.id: (name, node.opcode) for name, node in zip(names, nodes, strict=True)
        }
        self._last_scope[number] = next(filter(None, reversed(scopes)), "")
        works = self._work.add(number, root, nodes)
        origins = [self._fused(*each) for each in zip(nodes, own, strict=True)]
        self._origins[number] = origins_of_members(zip(origins, works, strict=True))
        scopes = [_scope_of_largest(*each) for each in zip(origins, scopes, strict=True)]
        inputs = self.inputs.of(number, root, nodes, origins)
        lenders = lenders_of(nodes, [bool(scope) for scope in scopes])
        instructions = [
            Instruction(
                scopes[lender] or f"{self._program}/{BY_COMPILER}{node.opcode}",
                places[lender],
                work,
                made or own[lender],
                taken,
            )
            for lender, node, work, made, taken in zip(lenders, nodes, works, origins, inputs, strict=True)
        ]
        self._found[number] = list(zip(names, instructions, strict=True))

    def _fused(self, node: HloNode, own: tuple[Origin, ...]) -> tuple[Origin, ...]:
        """The origins of an instruction: of a fusion those of its members, else its own."""
        if node.opcode not in FUSED:
            return own
        inside = (self._origins.get(number, ()) for number in node.called)
        return self._source.spend(next(filter(None, inside), own))

    def _nodes(self, found: Fields, spans: Sequence[Span]) -> list[HloNode]:
        source, count = self._source, len(spans)
        shapes: list[Shape] = [()] * count
        for owner, start, end in _places(found.of(3, BYTES)):
            shapes[owner] = self._shapes.at(start, end)
        opcodes = _texts(source, found.of(2, BYTES), count)
        ids = found.last(35, count).tolist()
        operands, called = (_numbers(source, found, number, count) for number in (36, 38))
        return list(map(HloNode, ids, opcodes, shapes, operands, called, spans))


def _schedule(source: XSpaceFile, module: Span) -> dict[int, list[int]]:
    """The instructions of each computation in the order in which they execute, as ids."""
    return {
        source.number(entry, 1): source.numbers(sequence, 1)
        for schedule in source.inner(module, 7)
        for entry in source.inner(schedule, 1)
        for sequence in source.inner(entry, 2)
    }


def _scope_of_largest(origins: tuple[Origin, ...], own: str) -> str:
    """The scope of the operation that has most of the work; XLA names a fusion after its last."""
    largest = max(origins, key=lambda origin: origin.share, default=None)
    return largest.scope if largest and largest.scope else own


def _metadata(
    source: XSpaceFile, found: Fields, count: int, index: FrameIndex
) -> tuple[list[str], list[str], list[int]]:
    """Scope, source location and frame of each instruction; empty or -1 if not recorded."""
    scopes, places, frames = [""] * count, [""] * count, [-1] * count
    inner = scan(source.octets, found.value, found.end, source.damage)
    size = len(found.owner)
    names, files = (_texts(source, inner.of(number, BYTES), size) for number in (2, 3))
    lines, frame = ([int32(each) for each in inner.last(part, size).tolist()] for part in (4, 15))
    for row, owner in enumerate(found.owner.tolist()):
        is_scope = "/" in names[row] and "['" not in names[row]  # which names an argument
        scopes[owner] = names[row] if is_scope else ""
        places[owner] = f"{files[row]}:{lines[row]}" if files[row] else index.place(frame[row])
        frames[owner] = index.number(frame[row], files[row], lines[row])
    return scopes, places, frames


def _texts(source: XSpaceFile, found: Fields, count: int) -> list[str]:
    result = [""] * count
    for owner, start, end in _places(found):
        result[owner] = source.text(start, end)
    return result


def _numbers(source: XSpaceFile, found: Fields, number: int, count: int) -> list[tuple[int, ...]]:
    """A repeated integer field of each message, packed or not."""
    result: list[list[int]] = [[] for _ in range(count)]
    single = found.of(number, VARINT)
    for owner, value in zip(single.owner.tolist(), single.value.tolist(), strict=True):
        result[owner].append(value)
    for owner, start, end in _places(found.of(number, BYTES)):
        result[owner] += source.packed(start, end)
    return [tuple(values) for values in result]


def _places(found: Fields) -> Iterator[tuple[int, int, int]]:
    return zip(*(column.tolist() for column in (found.owner, found.value, found.end)), strict=True)


def buffers_of(source: XSpaceFile, module: Span) -> dict[str, int]:
    """Sizes of a program's arguments, of those whose memory a result takes over (`donated_bytes`), and of
    others for which a result of the same shape and type takes new memory (`could_donate_bytes`)."""
    arguments, results = _program_shape(source, module, HloShapes(source))
    kept = dict.fromkeys(range(len(results)))
    donated: list[Array] = []
    for entry in (alias for aliases in source.inner(module, 8) for alias in source.inner(aliases, 1)):
        number = source.number(entry, 2)
        place = (source.numbers(entry, 1) or [0])[0]
        if number < len(arguments) and place in kept:
            del kept[place]
            donated.append(arguments[number])
    same = (Counter(arguments) - Counter(donated)) & Counter(results[place] for place in kept)
    sizes = (arguments, donated, same.elements())
    names = ("argument_bytes", "donated_bytes", "could_donate_bytes")
    return {
        name: round(sum(array.bytes for array in arrays)) for name, arrays in zip(names, sizes, strict=True)
    }


def shapes_of(source: XSpaceFile, module: Span) -> dict[str, list[str]]:
    """Shapes by which the programs of a profile can be seen to hand data to each other.

    Those of its arguments, and those of results that no argument has, as `64x128:32`, with the bits of
    an element; no scalars; each once.
    """
    arguments, results = _program_shape(source, module, HloShapes(source))
    return {"takes": _buffer_texts(arguments), "makes": _buffer_texts(set(results) - set(arguments))}


def _buffer_texts(arrays: Iterable[Array]) -> list[str]:
    shaped = {array for array in arrays if array.elements > 1}
    return sorted(f"{'x'.join(map(str, array.dimensions))}:{array.bits}" for array in shaped)


def arguments_of(source: XSpaceFile, module: Span) -> list[tuple[str, int, int]]:
    """Name, elements and bytes of each named argument of a program."""
    shapes, entry = HloShapes(source), source.number(module, 6)
    return [
        (name, round(array.elements), round(array.bytes))
        for computation in source.inner(module, 3)
        if source.number(computation, 5) == entry
        for instruction in source.inner(computation, 2)
        if [source.text(*span) for span in source.inner(instruction, 2)] == ["parameter"]
        for metadata in source.inner(instruction, 7)
        for name in (source.text(*span) for span in source.inner(metadata, 2))
        for span in source.inner(instruction, 3)
        for array in shapes.at(*span)
    ]


def _program_shape(source: XSpaceFile, module: Span, shapes: HloShapes) -> tuple[list[Array], list[Array]]:
    """The arrays of the arguments and of the result."""
    arguments: list[Array] = []
    results: list[Array] = []
    for program in source.inner(module, 4):
        for number, found in ((1, arguments), (2, results)):
            for span in source.inner(program, number):
                found += shapes.at(*span)
    return arguments, results
