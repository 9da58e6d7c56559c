"""What the instructions of a program take: its arguments, and gradients of differentiated ones.

An update of parameters is traced outside the two passes of a differentiated function. Whose
parameters it updates follows from what it takes: the argument that it replaces, and the gradient,
which is the result of an operation of the backward pass. Only operands that are at least as large
as the result count: a learning rate or a norm of all gradients says nothing of one parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from stepscope.read.xplane.hlo_products import Shape
from stepscope.read.xplane.hlo_work import HloNode, HloWork
from stepscope.read.xplane.protobuf import BYTES, Span, int32
from stepscope.read.xplane.xspace import XSpaceFile
from stepscope.trace.sets import Interner

BACKWARD, DIFFERENTIATED = "transpose(", "jvp("
_MOST = 16  # inputs of an instruction that are kept
# How a loop takes its own part of an argument: no use of it, wherever that was traced.
_MOVES = frozenset(("bitcast", "copy", "dynamic-slice", "get-tuple-element", "reshape", "tuple"))
BY_ELEMENT = ("tuple", "all-reduce", "reduce-scatter", "all-gather")  # element k is of operand k


class Input(NamedTuple):
    """An argument of the program, or else a gradient."""

    argument: str = ""  # its name; empty for a gradient, and for a parameter of a nested computation
    # scope, frame: of the operation that computed the gradient.
    scope: str = ""
    frame: int = -1
    elements: int = -1  # of the argument
    place: int = -1  # number of the parameter, -1 for a gradient


class ProgramArgument(NamedTuple):
    """An argument of a program."""

    name: str  # its path, as `params['Dense_0']['kernel']`
    # elements, bytes: its size.
    elements: int
    bytes: int
    # scope, frame: of the first operation of the forward pass that takes it; else empty and -1.
    scope: str = ""
    frame: int = -1
    updated: bool = False  # whether a result replaces it, with the help of a gradient


class Inputs:
    """Finds what the instructions of a program take; operands come before their users, and
    computations before those that call them."""

    def __init__(self, source: XSpaceFile) -> None:
        self._source = source
        self._uses_inside: dict[int, dict[int, Origin]] = {}  # by computation and parameter
        self._updated_inside: dict[int, set[int]] = {}
        self.uses: dict[str, Origin] = {}  # of each argument the first operation of the forward pass
        self.updated: set[str] = set()  # arguments that a result replaces, with the help of a gradient
        # Of the computation that is read: its instructions, and what each hands to its users.
        self._nodes: dict[int, HloNode] = {}
        self._passed: dict[int, tuple[Input, ...]] = {}

    def of(
        self, computation: int, root: int, nodes: Sequence[HloNode], origins: Sequence[Sequence[Origin]]
    ) -> list[tuple[Input, ...]]:
        """What each instruction outside the two passes takes, at most 16 inputs; else nothing.

        `origins` are the operations that each was made from, `root` is the id of the result's
        instruction.
        """
        self._nodes, self._passed = {}, {}
        inside: dict[int, Origin] = {}
        result: list[tuple[Input, ...]] = []
        for node, made in zip(nodes, origins, strict=True):
            taken = self._taken(node)
            gradients = [Input("", *origin[:2]) for origin in made if BACKWARD in origin.scope]
            passes = [origin for origin in made if DIFFERENTIATED in origin.scope]
            number = next((called for called in node.called if called in self._uses_inside), -1)
            moves = node.opcode in _MOVES or (number >= 0 and not self._uses_inside[number])
            forward = bool(passes) and not gradients and not moves
            if forward or number >= 0:
                self._use(number, passes[:1], node, inside)
            self._nodes[node.id] = node
            self._passed[node.id] = () if forward else _first(gradients or taken)
            result.append(_first([*gradients, *taken]) if len(passes) < len(made) else ())
            if gradients and result[-1]:
                self._passed[node.id] = result[-1]
        self._uses_inside[computation] = inside
        self._update(computation, root)
        return result

    def with_uses(self, arguments: Iterable[tuple[str, int, int]]) -> list[ProgramArgument]:
        """The arguments with their uses, from their names, elements and bytes."""
        unused = Origin("", -1, 0)
        return [
            ProgramArgument(name, elements, size, *self.uses.get(name, unused)[:2], name in self.updated)
            for name, elements, size in arguments
        ]

    def _taken(self, node: HloNode) -> tuple[Input, ...]:
        if node.opcode == "parameter":
            return self._parameter(node)
        if node.opcode == "get-tuple-element":
            return self._element(node)
        operands = [operand for operand in node.operands if operand in self._nodes]
        size = 0 if node.opcode in BY_ELEMENT else _elements(node.shape)
        shapes = (self._source.spend(self._nodes[operand].shape) for operand in operands)
        large = [operand for operand, shape in zip(operands, shapes, strict=True) if _elements(shape) >= size]
        return _first([taken for operand in large for taken in self._passed[operand]])

    def _parameter(self, node: HloNode) -> tuple[Input, ...]:
        if len(node.shape) != 1:  # of a loop: its elements are what counts
            return ()
        size, place = _elements(node.shape), self._source.number(node.span, 9)
        names = argument_names(self._source, node.span)
        return tuple(Input(name, elements=size, place=place) for name in names or [""])

    def _element(self, node: HloNode) -> tuple[Input, ...]:
        """What one element of a group takes: its own operand, where each element has one."""
        whole = self._nodes.get(node.operands[0]) if node.operands else None
        if whole is None:
            return ()
        index = self._source.number(node.span, 13)
        if whole.opcode == "parameter":
            return (Input(elements=_elements(node.shape), place=index),)
        if whole.opcode in BY_ELEMENT and index < len(whole.operands) > 1:
            return self._passed.get(whole.operands[index], ())
        return self._passed[whole.id]

    def _use(self, number: int, own: Sequence[Origin], node: HloNode, inside: dict[int, Origin]) -> None:
        """The arguments among the operands are used, by members of the computation that is called.

        A loop updates the arguments that an iteration of it updates.
        """
        users = self._uses_inside.get(number)
        origin = own[0] if own and users is None else None
        for place, operand in enumerate(self._operands(node)):
            for taken in self._passed.get(operand, ()):
                user = (users or {}).get(place, origin)
                if user and taken.argument:
                    self.uses.setdefault(taken.argument, user)
                if user and taken.place >= 0:
                    inside.setdefault(taken.place, user)
                if taken.argument and place in self._updated_inside.get(number, ()):
                    self.updated.add(taken.argument)

    def _operands(self, node: HloNode) -> tuple[int, ...]:
        """The operands of an instruction; of a loop, which takes one tuple, those of the tuple."""
        if node.opcode == "while" and node.operands:
            whole = self._nodes.get(node.operands[0])
            return self._source.spend(whole.operands) if whole and whole.opcode == "tuple" else ()
        return node.operands

    def _update(self, number: int, root: int) -> None:
        """Of what the results of the computation take, arguments of the same size are replaced."""
        places = self._updated_inside[number] = set()
        whole = self._nodes.get(root)
        if whole is None:
            return
        for part in whole.operands if whole.opcode == "tuple" else (root,):
            taken = self._passed.get(part, ())
            if any(each.scope for each in taken):
                size = _elements(self._nodes[part].shape)
                same = [each for each in taken if each.elements == size]
                self.updated |= {each.argument for each in same} - {""}
                places |= {each.place for each in same} - {-1}


def _first(inputs: Sequence[Input]) -> tuple[Input, ...]:
    return tuple(islice(dict.fromkeys(inputs), _MOST))


def _elements(shape: Shape) -> int:
    return max((array.elements for array in shape), default=0)


def argument_names(source: XSpaceFile, parameter: Span) -> list[str]:
    """The name of an argument of the program, none for other parameters."""
    names = (source.text(*s) for m in source.inner(parameter, 7) for s in source.inner(m, 2))
    return [name for name in names if name]


T = TypeVar("T")
_MOST_FRAMES = 256  # of a stack; a damaged one may contain itself
_LONGEST_TEXT = 1 << 10  # letters of a file or function; each instruction may repeat it


class SourceFrame(NamedTuple):
    """One Python frame; `parent` is the number of the frame that called it, -1 at the outermost."""

    parent: int
    function: str
    file: str
    line: int


SourceFrames = Interner[SourceFrame]


class Origin(NamedTuple):
    """An operation as JAX traced it: its scope, the number of its frame (-1 if unknown), share."""

    scope: str
    frame: int
    share: float


class FrameIndex:
    """The stacks to which a program's instructions refer by number; they are added to `frames`."""

    def __init__(self, source: XSpaceFile, module: Span, frames: SourceFrames) -> None:
        self._files: list[str] = []
        self._functions: list[str] = []
        self._locations: list[tuple[int, int, int]] = []
        self._frames: list[tuple[int, int]] = []
        self._all, self._known = frames, dict[int, int]()
        for index in source.inner(module, 17):
            for item in source.fields(index):
                if item.kind == BYTES:
                    self._add(source, item.number, Span(item.value, item.end))

    def _add(self, source: XSpaceFile, number: int, span: Span) -> None:
        if number == 1:
            self._files.append(source.text(*span)[:_LONGEST_TEXT])
        elif number == 2:
            self._functions.append(source.text(*span)[:_LONGEST_TEXT])
        elif number == 3:
            file, function, line = (source.number(span, part) for part in (1, 2, 3))
            self._locations.append((file, function, int32(line)))
        elif number == 4:
            self._frames.append((source.number(span, 1), source.number(span, 2)))

    def place(self, frame: int) -> str:
        """`file:line` of the innermost frame, empty if not recorded; numbers count from 1."""
        _, file, line = self._at(frame)
        return f"{file}:{line}" if file else ""

    def number(self, frame: int, file: str, line: int) -> int:
        """The number in `frames` of a frame of this program, else of a place alone; else -1."""
        if _item(self._frames, frame) is None:
            return self._all[SourceFrame(-1, "", file, line)] if file else -1
        stack: list[int] = []
        while frame not in self._known and len(stack) < _MOST_FRAMES:
            found = _item(self._frames, frame)
            if found is None:
                break
            stack.append(frame)
            frame = found[1]
        number = self._known.get(frame, -1)
        for each in reversed(stack):
            number = self._all[SourceFrame(number, *self._at(each))]
            self._known[each] = number
        return number

    def _at(self, frame: int) -> tuple[str, str, int]:
        location, _ = _item(self._frames, frame) or (0, 0)
        file, function, line = _item(self._locations, location) or (0, 0, 0)
        return _item(self._functions, function) or "", _item(self._files, file) or "", line


def _item(values: Sequence[T], number: int) -> T | None:
    return values[number - 1] if 0 < number <= len(values) else None


def own_origin(scope: str, frame: int) -> tuple[Origin, ...]:
    """The origins of an instruction that is no fusion."""
    return (Origin(scope, frame, 1.0),) if scope or frame >= 0 else ()


def origins_of_members(members: Iterable[tuple[Sequence[Origin], HloWork]]) -> tuple[Origin, ...]:
    """The origins of a computation from those of its members, by operations and bytes moved."""
    found: dict[tuple[str, int], float] = {}
    for origins, work in members:
        weight = sum(part for part in (work.flops, work.bytes) if part > 0)
        for origin in origins if work.kind else ():
            key = origin.scope, origin.frame
            found[key] = found.get(key, 0.0) + max(weight, 1.0) * origin.share
    whole = sum(found.values())
    return tuple(Origin(*key, weight / whole) for key, weight in found.items())
