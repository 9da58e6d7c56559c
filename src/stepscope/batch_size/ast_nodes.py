"""Names, strings and arguments in Python's syntax tree."""

from __future__ import annotations

import ast


def last_name(node: ast.AST | None) -> str:
    """`DataLoader` of `torch.utils.data.DataLoader`; empty where there is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return text_of(node.slice) or last_name(node.value)
    return ""


def text_of(node: ast.AST | None) -> str | None:
    """The value of a string literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def positional(call: ast.Call) -> list[ast.expr]:
    """The values of the positional arguments."""
    return [value for value in call.args if not isinstance(value, ast.Starred)]
