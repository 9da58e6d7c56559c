"""Dataclasses as dicts and lists, however deep they nest."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


def plain_data(value: Any) -> Any:
    """As `dataclasses.asdict`, without recursion: a model may nest hundreds of modules.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Node:
        ...     name: str
        ...     children: list["Node"]
        >>> plain_data(Node("model", [Node("layer", [])]))
        {'name': 'model', 'children': [{'name': 'layer', 'children': []}]}
    """
    whole = [value]
    pending: list[tuple[Any, Any]] = [(whole, 0)]
    while pending:
        holder, key = pending.pop()
        copy = _copied(holder[key])
        holder[key] = copy
        items = copy.items() if isinstance(copy, dict) else enumerate(copy)
        pending += [(copy, inner) for inner, one in items if _holds(one)]
    return whole[0]


def _copied(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return dict(value) if isinstance(value, dict) else list(value)


def _holds(value: Any) -> bool:
    """Whether a value is to be copied; a tuple of plain values stays one."""
    if isinstance(value, tuple):
        return any(map(_holds, value))
    return isinstance(value, dict | list) or is_dataclass(value)
