"""What the instructions of a program take: its arguments, and gradients of differentiated ones.

An update of parameters is traced outside the two passes of a differentiated function. Whose
parameters it updates follows from what it takes: the argument that it replaces, and the gradient,
which is the result of an operation of the backward pass. Only operands that are at least as large
as the result count: a learning rate or a norm of all gradients says nothing of one parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from stepscope.ingest.xplane.hlo_origins import Origin
from stepscope.ingest.xplane.hlo_shapes import Shape
from stepscope.ingest.xplane.hlo_work import Node
from stepscope.ingest.xplane.protobuf import Span
from stepscope.ingest.xplane.xspace import Source

_BACKWARD, _DIFFERENTIATED = "transpose(", "jvp("
_MOST = 16
_GROUPS = ("tuple", "all-reduce", "reduce-scatter", "all-gather")  # element k is of operand k


class Input(NamedTuple):
    """An argument of the program by its name, or else a gradient by its scope and frame."""

    argument: str = ""
    scope: str = ""
    frame: int = -1


class Argument(NamedTuple):
    """An argument of a program.

    Attributes:
        name: its path, as `params['Dense_0']['kernel']`.
        elements, bytes: its size.
        scope, frame: of the first operation of the forward pass that takes it; else empty and -1.
        updated: whether an instruction takes it together with a gradient.
    """

    name: str
    elements: int
    bytes: int
    scope: str = ""
    frame: int = -1
    updated: bool = False


class Inputs:
    """Finds what the instructions of a program take; operands come before their users.

    Attributes:
        uses: of each argument the origin of the first operation of the forward pass that takes it.
        updated: the arguments that an instruction takes together with a gradient.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.uses: dict[str, Origin] = {}
        self.updated: set[str] = set()

    def of(
        self, nodes: Sequence[Node], origins: Sequence[Sequence[Origin]]
    ) -> list[tuple[Input, ...]]:
        """What each instruction outside the two passes takes, at most 16 inputs; else nothing."""
        by_id: dict[int, Node] = {}
        passed: dict[int, tuple[Input, ...]] = {}
        result: list[tuple[Input, ...]] = []
        for node, made in zip(nodes, origins, strict=True):
            taken = self._taken(node, by_id, passed)
            gradients = [Input("", *origin[:2]) for origin in made if _BACKWARD in origin.scope]
            inside = [origin for origin in made if _DIFFERENTIATED in origin.scope]
            if inside and not gradients:
                self._use(inside[0], node, passed)
            by_id[node.id] = node
            passed[node.id] = () if inside and not gradients else _first(gradients or taken)
            outside = len(inside) < len(made)
            result.append(_first([*gradients, *taken]) if outside else ())
            self._update(result[-1])
        return result

    def with_uses(self, arguments: Iterable[tuple[str, int, int]]) -> list[Argument]:
        """The arguments with their uses, from their names, elements and bytes."""
        unused = Origin("", -1, 0)
        return [
            Argument(name, elements, size, *self.uses.get(name, unused)[:2], name in self.updated)
            for name, elements, size in arguments
        ]

    def _taken(
        self, node: Node, by_id: dict[int, Node], passed: dict[int, tuple[Input, ...]]
    ) -> tuple[Input, ...]:
        if node.opcode == "parameter":
            return tuple(Input(name) for name in _argument(self._source, node.span))
        if node.opcode == "get-tuple-element":
            return self._element(node, by_id, passed)
        operands = [one for one in node.operands if one in by_id]
        size = _elements(node.shape)
        large = [one for one in operands if _elements(by_id[one].shape) >= size]
        return _first([one for operand in large for one in passed[operand]])

    def _element(
        self, node: Node, by_id: dict[int, Node], passed: dict[int, tuple[Input, ...]]
    ) -> tuple[Input, ...]:
        """What one element of a group takes: its own operand, where each element has one."""
        whole = by_id.get(node.operands[0]) if node.operands else None
        if whole is None:
            return ()
        index = self._source.number(node.span, 13)
        if whole.opcode in _GROUPS and index < len(whole.operands) > 1:
            return passed.get(whole.operands[index], ())
        return passed[whole.id]

    def _use(self, origin: Origin, node: Node, passed: dict[int, tuple[Input, ...]]) -> None:
        for operand in node.operands:
            for one in passed.get(operand, ()):
                if one.argument:
                    self.uses.setdefault(one.argument, origin)

    def _update(self, taken: tuple[Input, ...]) -> None:
        if any(not one.argument for one in taken):
            self.updated |= {one.argument for one in taken if one.argument}


def _first(inputs: Sequence[Input]) -> tuple[Input, ...]:
    return tuple(islice(dict.fromkeys(inputs), _MOST))


def _elements(shape: Shape) -> int:
    return max((array.elements for array in shape), default=0)


def _argument(source: Source, parameter: Span) -> list[str]:
    """The name of a parameter of the program, none for those of other computations."""
    names = (source.text(*s) for m in source.inner(parameter, 7) for s in source.inner(m, 2))
    return [name for name in names if name]
