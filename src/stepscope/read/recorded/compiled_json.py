"""Reader of what a capture knows of compiled graphs, `compiled.json`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stepscope.base.typed_data import decode
from stepscope.read.shared import checked

Count = Annotated[int, Meta(ge=0, le=1 << 60)]


class TracedOperation(Struct):
    """A node of a graph as Dynamo traced it; `reads` are positions of inputs."""

    name: str
    target: str
    path: str | None
    elements: Count
    operations: Count
    reads: list[Count] = []


class InductorProgram(Struct):
    """The forward or backward program made from a graph: its key, and the code of its calls."""

    key: str | None
    backward: bool
    code: str


class InductorGraph(Struct):
    """A compiled graph.

    Attributes:
        region: its number, as in the range `Torch-Compiled Region: 0/0`.
        base: the path of the module whose call was compiled.
        inputs: the path of the module of each input that is a parameter, else null.
    """

    region: str
    base: str | None
    inputs: list[str | None]
    nodes: list[TracedOperation]
    programs: list[InductorProgram]


class Compiled(Struct):
    """The form of compiled.json."""

    graphs: list[InductorGraph]


def parse_compiled(text: bytes) -> dict[str, Any]:
    """The compiled graphs as plain data; raises IngestError if the text has another form."""
    with checked("compiled.json"):
        compiled = decode(text, Compiled)
        for graph in compiled.graphs:
            for node in graph.nodes:
                if max(node.reads, default=-1) >= len(graph.inputs):
                    raise ValueError(f"{node.name} reads input {max(node.reads)} of {len(graph.inputs)}")
        found: dict[str, Any] = msgspec.to_builtins(compiled)
    return found
