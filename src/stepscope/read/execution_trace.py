"""PyTorch's execution traces: which memory each operator reads and writes, without times.

Source: torch/csrc/profiler/standalone/execution_trace_observer.cpp (PyTorch 2.13). A tensor is its own
number, its storage's, offset, count and size of elements, and device; `rf_id` is the `Record function id`
that Kineto gives the same call.
"""

import re
from collections.abc import Iterator
from itertools import chain, compress, zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.base.input_files import open_input
from stepscope.base.typed_data import decode
from stepscope.errors import IngestError
from stepscope.read.byte_stream import GZIP, check_holes, whole

Part = tuple[int, int, int]  # of memory: storage, first byte, byte after the last
Call = tuple[str, list[Part], list[Part]]  # its name, what it reads, what it writes
_DEFAULT = re.compile(r"=\[[^\[\]]*\]")  # of an argument that is a list, which has commas


class _File(Struct):
    pid: int
    nodes: list[dict[str, Any]]


def read_execution_trace(path: Path) -> tuple[int, dict[int, Call]]:
    """The process that an execution trace is of, and its calls by `rf_id`; IngestError if it is none."""
    try:
        with open_input(path) as file:
            check_holes(file)
            packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            text = whole(file, packed, lambda code, message: None, lambda size: None)
        recorded = decode(text, _File)
        return recorded.pid, dict(map(_call, recorded.nodes))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        hint = "give the file of torch.profiler.ExecutionTraceObserver"
        raise IngestError(f"{path} is no execution trace of PyTorch: {error}; {hint}") from error


def _call(node: dict[str, Any]) -> tuple[int, Call]:
    attributes = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
    arguments, results = (
        [[*_memory(*value)] for value in _values(node[side])] for side in ("inputs", "outputs")
    )
    reads = [*chain(*arguments)]
    # A result in the memory of an argument is a view; but c10d does not declare what it changes.
    known = {part[0] for part in reads} if node["name"].startswith("aten::") else ()
    # What it changes, its schema says: `add_(Tensor(a!) self, …) -> …`.
    declared = _DEFAULT.sub("", attributes["op_schema"].partition("(")[2].rpartition(") ->")[0])
    changed = ("!" in argument for argument in declared.split(", ") if argument != "*")
    writes = [part for part in chain(*results) if part[0] not in known]
    return int(attributes["rf_id"]), (node["name"], reads, [*writes, *chain(*compress(arguments, changed))])


def _values(side: dict[str, list[Any]]) -> Iterator[tuple[Any, Any, Any]]:
    """The tensors of each value with their shapes and, in newer files, strides; most have one or none."""
    for value, kind, *layout in zip_longest(
        *(side.get(key, ()) for key in ("values", "types", "shapes", "strides"))
    ):
        lists = ([value], [layout[0]], [layout[1]]) if kind.startswith("Tensor(") else (value, *layout)
        yield lists if "Tensor(" in kind else ((), (), ())


def _memory(tensors: list[Any], shapes: list[Any], strides: list[Any] | None) -> Iterator[Part]:
    for tensor, shape, steps in zip_longest(tensors, shapes, strides or ()):
        storage, offset, count, size = map(int, tensor[1:5] if isinstance(tensor, list) else [0] * 4)
        if count and steps is not None:
            count = 1 + sum((int(each) - 1) * int(step) for each, step in zip(shape, steps, strict=True))
        if count:
            yield storage, offset * size, (offset + count) * size
