"""Whole numbers as they are written: `32`, `0x20`, `1_024`, `4 * 8`, `2**5`, `"32"`."""

from __future__ import annotations

import ast

_LARGEST = 10**9
_MOST_DIGITS = 20


def written_number(node: ast.expr | None) -> int | None:
    """The positive whole number that an expression of literals spells; None for anything else."""
    value = _value(node)
    return value if value is not None and 0 < value <= _LARGEST else None


def _value(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Constant):
        return _literal(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        return None if left is None or right is None else _combine(node.op, left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return _value(node.args[0]) if len(node.args) == 1 and not node.keywords else None
    return None


def _literal(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
        return int(value) if digits else None
    return value if type(value) is int else None  # a bool is an int


def _combine(operator: ast.operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Pow) and 0 <= right < 64 and abs(left) <= 1024:
        return int(left**right)
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    if isinstance(operator, ast.LShift) and 0 <= right < 64:
        return left << right
    return None


def write_number(text: str, value: int) -> str:
    """`value` in the place of `text`: quoted where that was, in plain digits otherwise.

    Example:
        >>> write_number("'32'", 48), write_number("4 * 8", 48)
        ("'48'", '48')
    """
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:
        return f"{text[0]}{value}{text[0]}"
    return str(value)
