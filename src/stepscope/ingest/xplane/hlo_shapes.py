"""Shapes of the values in an XLA program, and their sizes.

Source: xla_data.proto (https://github.com/openxla/xla, xla), messages ShapeProto and PrimitiveType.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from stepscope.ingest.xplane.protobuf import Span
from stepscope.ingest.xplane.xspace import Source

_BITS = {
    1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64,
    16: 16, 18: 128, 19: 8, 20: 8, 21: 4, 22: 4, 23: 8, 24: 8, 25: 8, 26: 2, 27: 2, 28: 8, 29: 8,
    30: 1, 31: 1, 32: 4, 33: 8, 35: 6, 36: 6,
}  # fmt: skip
_DEEPEST, _MOST_DIMENSIONS, _MOST_ELEMENTS = 16, 64, 1 << 60


class Array(NamedTuple):
    """One array: its dimensions, and bits per element (0 for a token and other things)."""

    dimensions: tuple[int, ...]
    bits: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def bytes(self) -> float:
        """Size without padding."""
        return self.elements * self.bits / 8

    @property
    def width(self) -> int:
        """Bytes per element, rounded up."""
        return -(-self.bits // 8)


Shape = tuple[Array, ...]  # the arrays of a tuple, nested ones too; one for anything else
NO_ARRAY = Array((), 0)


class Shapes(dict[bytes, Shape]):
    """Shapes by their encoding; programs repeat few of them many times."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def at(self, start: int, end: int) -> Shape:
        """The shape that is encoded at a place in the file."""
        key = self._source.data[start:end]
        if key not in self:
            self[key] = tuple(self._arrays(Span(start, end), 0))
        return self[key]

    def _arrays(self, span: Span, depth: int) -> list[Array]:
        inner = self._source.inner(span, 4) if depth < _DEEPEST else []
        if inner:
            return [array for part in inner for array in self._arrays(part, depth + 1)]
        dimensions = tuple(self._source.numbers(span, 3))
        if len(dimensions) > _MOST_DIMENSIONS or prod(dimensions) > _MOST_ELEMENTS:
            self._source.damage.add()
            return []
        return [Array(dimensions, _BITS.get(self._source.number(span, 2), 0))]


def first(shape: Shape) -> Array:
    """The first array of a shape, an empty one if there is none."""
    return shape[0] if shape else NO_ARRAY


def size(shape: Shape) -> float:
    """Bytes of all arrays of a shape."""
    return sum(array.bytes for array in shape)
