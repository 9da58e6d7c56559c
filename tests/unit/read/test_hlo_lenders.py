"""Instructions that the compiler added have the metadata of the ones that they exist for."""

from __future__ import annotations

from stepscope.read.xplane.hlo_flow import lenders_of
from stepscope.read.xplane.hlo_work import HloNode
from stepscope.read.xplane.protobuf import Span


def program(*instructions: tuple[str, str]) -> list[HloNode]:
    """Instructions of `NAME OPERAND …` and opcode, in order."""
    ids = {text.split()[0]: number for number, (text, _) in enumerate(instructions)}
    return [
        HloNode(ids[name], opcode, (), tuple(ids[one] for one in operands), (), Span(0, 0))
        for (name, *operands), opcode in ((text.split(), opcode) for text, opcode in instructions)
    ]


def test_a_copy_belongs_to_what_uses_it() -> None:
    nodes = program(("x", "parameter"), ("copy x", "copy"), ("flat copy", "bitcast"), ("dot flat", "dot"))
    assert lenders_of(nodes, [True, False, False, True])[1:] == [3, 3, 3]


def test_a_copy_of_a_result_belongs_to_what_makes_it() -> None:
    nodes = program(("x", "parameter"), ("dot x", "dot"), ("copy dot", "copy"), ("out copy", "tuple"))
    assert lenders_of(nodes, [True, True, False, False])[1:] == [1, 1, 1]


def test_an_argument_that_is_returned_as_it_is_lends_nothing() -> None:
    nodes = program(("x", "parameter"), ("copy x", "copy"), ("out copy", "tuple"))
    assert lenders_of(nodes, [True, False, False]) == [0, 1, 2]
