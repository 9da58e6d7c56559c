"""Syntax trees of Python source, one at a time.

CPython 3.11 counts the depth of all trees that are being made in one number: a thread that goes on
while another is in the middle of its tree gets a `SystemError` (as in python/cpython#106905). The
other may be one of the standard library, which parses lines to show a traceback.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from threading import RLock
from typing import Any

_ONE_AT_A_TIME = RLock()  # a finalizer of the same thread may parse, too
_TRIES = 10  # of a parse that another thread may disturb


def parse_source(text: str, file: str = "<unknown>", mode: str = "exec") -> Any:
    """`ast.parse`, from any thread; `mode` is `"exec"` for statements, `"eval"` for one expression."""
    with _ONE_AT_A_TIME:
        for _ in range(_TRIES - 1):
            with suppress(SystemError):
                return ast.parse(text, file, mode)
        return ast.parse(text, file, mode)


def parse_call(text: str) -> ast.Call | None:
    """The syntax tree of one call, None if the text is anything else.

    Example:
        >>> parse_call("DataLoader(data, 8)").func.id
        'DataLoader'
        >>> parse_call("8 +") is parse_call("8") is None
        True
    """
    with suppress(SyntaxError):
        node = parse_source(text, mode="eval").body
        return node if isinstance(node, ast.Call) else None
    return None


_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_EACH = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ASSIGNS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)


def loops_carry(tree: ast.AST, line: int) -> list[bool]:
    """Whether each loop around a line, inner ones first, calls something with what its last iteration set.

    Of the function that has the line, up to a loop that trains.

    Example:
        >>> loops_carry(parse_source("for x in rows:\\n    h = cell(x, h)"), 2)
        [True]
        >>> loops_carry(parse_source("[net(x) for x in rows]"), 1)
        [False]
    """
    nodes, carry = [*ast.walk(tree)], list[bool]()
    around = [
        one for one in nodes[1:] if getattr(one, "lineno", line + 1) <= line <= getattr(one, "end_lineno", 0)
    ]
    for node in reversed([nodes[0], *around]):
        inside = (one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))
        if isinstance(node, _SCOPES) or not {"backward", "zero_grad"}.isdisjoint(inside):
            break
        if isinstance(node, (ast.For, ast.While, *_EACH)):
            used, stored = set[str](), set[str]()
            for name, is_stored in _names(node):
                if is_stored or name not in stored:
                    (stored if is_stored else used).add(name)
            carry.append(not isinstance(node, _EACH) and not used.isdisjoint(stored))
    return carry


def _names(node: ast.AST, in_call: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that are stored, and those that calls use, in order of evaluation."""
    in_call = in_call or isinstance(node, ast.Call)
    if isinstance(node, ast.Name | ast.Attribute):
        is_stored = isinstance(node.ctx, ast.Store)
        yield from [(ast.unparse(node), is_stored)] * (is_stored or in_call)
    last = ast.Store if isinstance(node, _ASSIGNS) else ()  # an assignment's targets
    children = list(ast.iter_child_nodes(node))
    children.sort(
        key=lambda one: isinstance(getattr(one, "ctx", None), last) - isinstance(one, ast.comprehension)
    )
    for child in children:
        yield from _names(child, in_call)
