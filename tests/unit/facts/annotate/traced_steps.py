"""One step of compiled operations, each with the stack in which it was traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, INPUTS, ORIGINS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

SITE = "/venv/lib/python3.11/site-packages"


Argument = tuple[str, int, int, str, int, bool]


def traced(
    *operations: tuple[str, str, list[str]],
    inputs: Mapping[str, Sequence[str]] = MappingProxyType({}),
    arguments: Sequence[Argument] = (),
    shapes: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> Trace:
    """One step of operations, each with its name, scope and stack of `FILE:LINE FUNCTION`.

    Args:
        operations: as they run one after the other.
        inputs: what the operation of each name takes: names of arguments, and other operations.
        arguments: of the program, as the reader of profiles has them.
        shapes: what each program takes and makes, as the reader of profiles has them.
    """
    numbers: dict[tuple[int, str], int] = {}
    rows, text = [], ["main | 0 500 | PjitFunction(step) | cat=runtime"]
    for index, (name, scope, stack) in enumerate(operations):
        number = -1
        for frame in stack:
            number = numbers.setdefault((number, frame), len(numbers))
        rows.append((index, scope, number, 1.0))
        begin = 10 * (index + 1)
        of = f"cat=cpu_op corr=1 scope={scope}"
        text.append(f"pool | {begin} {begin + 10} | {name} | {of}")
    trace = drawn_trace("\n".join(text))
    names = [name for name, _, _ in operations]
    origin = [
        names.index(name) if name in names else -1
        for name in (text or "" for text in trace.events.text("name"))
    ]
    first, scopes, frame, share = zip(*rows, strict=True)
    places = [frame.partition(" ") for _, frame in numbers]
    origins: dict[str, Any] = {"first": first, "scope": Text.of(scopes), "frame": frame, "share": share}
    frames: dict[str, Any] = {
        "parent": [parent for parent, _ in numbers],
        "function": Text.of(function for _, _, function in places),
        "file": Text.of(place.rpartition(":")[0] for place, _, _ in places),
        "line": [int(place.rpartition(":")[2]) for place, _, _ in places],
    }
    trace = trace.with_events(origin=np.array(origin))
    trace = trace.with_table(Table(ORIGINS, origins)).with_table(Table(FRAMES, frames))
    of_name = {operations[index][0]: rows[index] for index in range(len(operations))}
    trace = trace.with_table(_inputs(of_name, inputs))
    properties = {**trace.metadata.properties, "arguments": list(arguments), "program_shapes": shapes}
    return annotate(trace.with_metadata(properties=properties))


def _inputs(of_name: Mapping[str, tuple[int, str, int, float]], inputs: Mapping[str, Sequence[str]]) -> Table:
    taken = [
        (of_name[name][0], "", *of_name[one][1:3]) if one in of_name else (of_name[name][0], one, "", -1)
        for name, ones in inputs.items()
        for one in ones
    ]
    columns: dict[str, Any] = {
        "first": [row[0] for row in taken],
        "argument": Text.of(row[1] or None for row in taken),
        "scope": Text.of(row[2] or None for row in taken),
        "frame": [row[3] for row in taken],
    }
    return Table(INPUTS, columns)
