"""Names, strings and arguments in libcst's tree."""

from __future__ import annotations

import libcst as cst


def last_name(node: cst.CSTNode) -> str:
    """`DataLoader` of `torch.utils.data.DataLoader`; empty where there is no name."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Subscript):
        return text_of(node.slice[0].slice) or last_name(node.value)
    return ""


def text_of(node: cst.CSTNode | None) -> str | None:
    """The value of a plain string literal."""
    if isinstance(node, cst.Index):
        node = node.value
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value of a keyword argument."""
    found = (a.value for a in call.args if a.keyword is not None and a.keyword.value == name)
    return next(found, None)


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """The values of the positional arguments."""
    return [a.value for a in call.args if a.keyword is None and not a.star]
