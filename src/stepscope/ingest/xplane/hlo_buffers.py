"""Arguments and results of XLA's programs, and which of them share memory.

Source: hlo.proto (https://github.com/openxla/xla, xla/service), HloModuleProto.host_program_shape
and HloInputOutputAliasProto.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stepscope.ingest.xplane.hlo_shapes import Array, Shapes
from stepscope.ingest.xplane.protobuf import Span
from stepscope.ingest.xplane.xspace import Source


def buffers_of(source: Source, module: Span) -> dict[str, int]:
    """Sizes of a program's arguments, bytes.

    Returns:
        `argument_bytes`: all of them; `donated_bytes`: those whose memory a result takes over;
        `could_donate_bytes`: others for which there is a result of the same shape and type, which
        takes new memory.
    """
    shapes = Shapes(source)
    arguments, results = _program_shape(source, module, shapes)
    kept = list(range(len(results)))
    donated: list[Array] = []
    for entry in (one for part in source.inner(module, 8) for one in source.inner(part, 1)):
        number = source.number(entry, 2)
        place = (source.numbers(entry, 1) or [0])[0]
        if number < len(arguments) and place in kept:
            kept.remove(place)
            donated.append(arguments[number])
    left = Counter(arguments) - Counter(donated)
    same = left & Counter(results[place] for place in kept)
    sizes = (arguments, donated, same.elements())
    names = ("argument_bytes", "donated_bytes", "could_donate_bytes")
    return {
        name: round(sum(array.bytes for array in arrays))
        for name, arrays in zip(names, sizes, strict=True)
    }


def shapes_of(source: Source, module: Span) -> dict[str, list[str]]:
    """Shapes by which the programs of a profile can be seen to hand data to each other.

    Returns:
        `takes`: shapes of its arguments; `makes`: shapes of results that no argument has. As
        `64x128:32`, with the bits of an element; no scalars; each once.
    """
    arguments, results = _program_shape(source, module, Shapes(source))
    return {"takes": _texts(arguments), "makes": _texts(set(results) - set(arguments))}


def _texts(arrays: Iterable[Array]) -> list[str]:
    shaped = {array for array in arrays if array.elements > 1}
    return sorted(f"{'x'.join(map(str, array.dimensions))}:{array.bits}" for array in shaped)


def arguments_of(source: Source, module: Span) -> list[tuple[str, int, int]]:
    """Name, elements and bytes of each named argument of a program."""
    shapes, entry = Shapes(source), source.number(module, 6)
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


def _program_shape(source: Source, module: Span, shapes: Shapes) -> tuple[list[Array], list[Array]]:
    """The arrays of the arguments and of the result."""
    arguments: list[Array] = []
    results: list[Array] = []
    for program in source.inner(module, 4):
        for number, found in ((1, arguments), (2, results)):
            for span in source.inner(program, number):
                found += shapes.at(*span)
    return arguments, results
