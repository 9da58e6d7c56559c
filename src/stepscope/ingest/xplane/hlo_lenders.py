"""Which instruction names one that XLA added, such as the copy of an array to another layout.

Such an instruction has no metadata. It exists for the one that uses its result, or else, as at the
end of a program, for the one whose result it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.ingest.xplane.hlo_work import Node

_OF_NOTHING = ("parameter", "constant")  # named by arguments, not by operations


def lenders_of(nodes: Sequence[Node], named: Sequence[bool]) -> list[int]:
    """The instruction whose metadata each one has: itself if it has some, or none has.

    Args:
        nodes: the instructions of a computation, operands before their users.
        named: which of them have metadata.
    """
    row_of = {node.id: row for row, node in enumerate(nodes)}
    operands = [[row_of[one] for one in node.operands if one in row_of] for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for row, used in enumerate(operands):
        for operand in used:
            users[operand].append(row)
    lenders = [
        row if has and node.opcode not in _OF_NOTHING else -1
        for row, (node, has) in enumerate(zip(nodes, named, strict=True))
    ]
    _lend(lenders, users, reversed(range(len(nodes))))
    _lend(lenders, operands, iter(range(len(nodes))))
    return [row if lender < 0 else lender for row, lender in enumerate(lenders)]


def _lend(lenders: list[int], sources: Sequence[Sequence[int]], order: Iterator[int]) -> None:
    """Give each instruction without a lender that of its first source that has one."""
    for row in order:
        if lenders[row] < 0:
            lenders[row] = next((lenders[one] for one in sources[row] if lenders[one] >= 0), -1)
