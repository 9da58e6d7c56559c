"""Whole numbers as they are written: `32`, `0x20`, `1_024`, `4 * 8`, `2**5`, `"32"`."""

from __future__ import annotations

import libcst as cst

_LARGEST = 10**9


def written_number(node: cst.BaseExpression | None) -> int | None:
    """The positive whole number that an expression of literals spells; None for anything else."""
    value = _value(node)
    return value if value is not None and 0 < value <= _LARGEST else None


def _value(node: cst.BaseExpression | None) -> int | None:
    if isinstance(node, cst.Integer):
        return int(node.evaluated_value)
    if isinstance(node, cst.SimpleString):
        return _quoted(node)
    if isinstance(node, cst.BinaryOperation):
        left, right = _value(node.left), _value(node.right)
        return None if left is None or right is None else _combine(node.operator, left, right)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "int":
        return _value(node.args[0].value) if len(node.args) == 1 else None
    return None


def _combine(operator: cst.BaseBinaryOp, left: int, right: int) -> int | None:
    if isinstance(operator, cst.Multiply):
        return left * right
    if isinstance(operator, cst.Add):
        return left + right
    if isinstance(operator, cst.Power) and 0 <= right < 64 and abs(left) <= 1024:
        return int(left**right)
    if isinstance(operator, cst.FloorDivide) and right:
        return left // right
    if isinstance(operator, cst.LeftShift) and 0 <= right < 64:
        return left << right
    return None


def _quoted(node: cst.SimpleString) -> int | None:
    value = node.evaluated_value
    digits = isinstance(value, str) and value.isascii() and value.isdigit()
    return int(value) if digits else None


def write_number(text: str, value: int) -> str:
    """`value` in the place of `text`: quoted where that was, in plain digits otherwise.

    Example:
        >>> write_number("'32'", 48), write_number("4 * 8", 48)
        ("'48'", '48')
    """
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:
        return f"{text[0]}{value}{text[0]}"
    return str(value)
