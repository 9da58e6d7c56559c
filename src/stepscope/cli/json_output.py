"""Facts as JSON on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

_WRITTEN = -1


def echo_json(facts: Any) -> None:
    """Print facts as JSON that every reader takes: a number that is not finite is null."""
    click.echo("".join(_pieces(facts)))


def _pieces(facts: Any) -> Iterator[str]:
    """`json.dumps(facts, indent=1)`, without recursion: a model may nest hundreds of modules."""
    pending: list[tuple[Any, int]] = [(facts, 0)]
    while pending:
        value, level = pending.pop()
        if isinstance(value, msgspec.Struct):
            value = msgspec.structs.asdict(value)
        if level == _WRITTEN:
            yield value
        elif isinstance(value, Mapping) and value:
            keys = [f"{json.dumps(key if isinstance(key, str) else json.dumps(key))}: "
                    for key in value]  # fmt: skip
            pending += reversed(_members("{}", keys, list(value.values()), level))
        elif isinstance(value, list | tuple) and value:
            pending += reversed(_members("[]", [""] * len(value), list(value), level))
        else:
            yield json.dumps(finite(value), allow_nan=False)


def _members(
    ends: str, heads: Sequence[str], values: Sequence[Any], level: int
) -> list[tuple[Any, int]]:
    """The parts of an object or a list, each on lines of its own."""
    parts: list[tuple[Any, int]] = []
    for place, (head, value) in enumerate(zip(heads, values, strict=True)):
        before = "," if place else ends[0]
        parts += [(f"{before}\n{' ' * (level + 1)}{head}", _WRITTEN), (value, level + 1)]
    return [*parts, (f"\n{' ' * level}{ends[1]}", _WRITTEN)]


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have.

    Example:
        >>> finite({"speedup": float("inf"), "range": (1.0, float("nan"))})
        {'speedup': None, 'range': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
