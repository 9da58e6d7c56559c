"""From the expression that a loader is given back to the number that it comes from.

`DataLoader(data, batch_size=args.batch_size)` leads to the option `--batch-size`; a name leads to
its assignment, a parameter to what callers pass or to its default, an attribute or a key to
whatever defines one of that name. What leads nowhere gives nothing; what may come from several
places gives them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from stepscope.predict.facts import (
    Call,
    Definition,
    Facts,
    Scope,
    keyword,
    last_name,
    positional,
    text_of,
)
from stepscope.predict.names import is_batch_size
from stepscope.predict.tokens import written_number

_DEEPEST = 12
_WRAPPERS = ("int", "max", "min", "abs", "round")


@dataclass(frozen=True)
class Origin:
    """A number, what it defines, and the command line option on the way to it."""

    node: cst.BaseExpression | None
    definition: Definition
    option: str | None = None


@dataclass(frozen=True)
class Missing:
    """A key that the file reads but does not define: perhaps a setting in another file."""

    key: str


class Resolver:
    """Follows expressions within one file."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.missing: list[Missing] = []

    def follow(self, node: cst.BaseExpression, at: Definition) -> list[Origin]:
        """The numbers that `node` may come from, each once.

        Args:
            node: the expression.
            at: what it is the value of; a number written right here defines that.
        """
        found = {id(origin.node): origin for origin in self._follow(node, at, 0)}
        return list(found.values())

    def _follow(
        self, node: cst.BaseExpression | None, at: Definition, depth: int
    ) -> Iterator[Origin]:
        if node is None or depth > _DEEPEST:
            return
        if written_number(node) is not None:
            yield Origin(node, at, at.option)
        elif isinstance(node, cst.Name):
            yield from self._name(node.value, at, depth)
        elif isinstance(node, cst.Attribute):
            yield from self._key(node.attr.value, at, depth)
        elif isinstance(node, cst.Subscript):
            yield from self._key(last_name(node), at, depth)
        elif isinstance(node, cst.Call):
            yield from self._call(node, at, depth)
        else:
            yield from self._parts(node, at, depth)

    def _parts(self, node: cst.BaseExpression, at: Definition, depth: int) -> Iterator[Origin]:
        """`a or 32`, `a if b else c`, `a // world`: each side that is no mere factor."""
        sides: list[cst.BaseExpression] = []
        if isinstance(node, cst.BooleanOperation | cst.BinaryOperation):
            sides = [node.left, node.right]
        elif isinstance(node, cst.IfExp):
            sides = [node.body, node.orelse]
        if isinstance(node, cst.BinaryOperation):
            sides = [side for side in sides if _speaks_of_batch(side)]
        for side in sides:
            yield from self._follow(side, at, depth + 1)

    def _name(self, name: str, at: Definition, depth: int) -> Iterator[Origin]:
        """The innermost scope that defines the name counts, as in Python."""
        for length in range(len(at.scope), -1, -1):
            scope = at.scope[:length]
            inside = [
                one
                for one in self.facts.definitions
                if one.name == name and one.scope == scope and one.kind in _NAMES
            ]
            if inside:
                for one in inside:
                    yield from self._definition(one, depth)
                return

    def _definition(self, one: Definition, depth: int) -> Iterator[Origin]:
        if one.kind in ("parameter", "provider"):
            yield from self._parameter(one, depth)
        else:
            yield from _through(one, self._follow(one.value, one, depth + 1))

    def _parameter(self, one: Definition, depth: int) -> Iterator[Origin]:
        """What callers in this file pass, and the default where one of them passes nothing."""
        passed = [self._passed(call, one) for call in self._calls_of(one.scope)]
        for value, call in passed:
            if value is not None:
                here = Definition("argument", one.name, call.scope, value)
                yield from self._follow(value, here, depth + 1)
        if one.value is not None and (not passed or any(value is None for value, _ in passed)):
            yield from self._follow(one.value, one, depth + 1)
        if one.value is None and not passed:
            yield from self._options(one.name, depth)

    def _calls_of(self, scope: Scope) -> list[Call]:
        name = scope[-2] if scope[-1] == "__init__" and len(scope) > 1 else scope[-1]
        return [call for call in self.facts.calls if call.name == name]

    def _passed(self, call: Call, one: Definition) -> tuple[cst.BaseExpression | None, Call]:
        names = [n for n in self.facts.parameters[one.scope] if n not in ("self", "cls")]
        values = positional(call.node)
        place = names.index(one.name)
        value = keyword(call.node, one.name) or (values[place] if place < len(values) else None)
        return value, call

    def _key(self, name: str, at: Definition, depth: int) -> Iterator[Origin]:
        """`args.batch_size`, `self.batch_size`, `config["batch_size"]`."""
        found = [
            one
            for one in self.facts.definitions
            if one.name == name and (one.kind in _KEYS or _is_object_argument(one))
        ]
        origins = [
            origin
            for one in found
            for origin in _through(one, self._follow(one.value, one, depth + 1))
        ]
        if not origins:
            self.missing.append(Missing(name))
        yield from origins

    def _options(self, name: str, depth: int) -> Iterator[Origin]:
        for one in self.facts.definitions:
            if one.kind == "option" and one.name == name:
                yield from _through(one, self._follow(one.value, one, depth + 1))

    def _call(self, node: cst.Call, at: Definition, depth: int) -> Iterator[Origin]:
        """`cfg.get("batch_size", 32)`, `getattr(args, "batch_size", 32)`, `int(x)`."""
        values = positional(node)
        name = last_name(node.func)
        if name in _WRAPPERS:
            for value in values:
                if written_number(value) is None:
                    yield from self._follow(value, at, depth + 1)
            return
        if name not in ("get", "pop", "getattr", "getenv"):
            return
        key = next((text for value in values if (text := text_of(value))), None)
        origins = list(self._key(key, at, depth)) if key else []
        if not origins and len(values) > 1:
            origins = list(self._follow(values[-1], at, depth + 1))
        yield from origins


_NAMES = ("constant", "parameter", "provider", "field")
_KEYS = ("option", "attribute", "field", "entry")


def _is_object_argument(one: Definition) -> bool:
    """`Config(batch_size=32)` sets what `config.batch_size` reads."""
    return one.kind == "argument" and one.value is not None


def _through(one: Definition, origins: Iterator[Origin]) -> Iterator[Origin]:
    """Note the command line option passed on the way."""
    for origin in origins:
        yield Origin(origin.node, origin.definition, origin.option or one.option)


def _speaks_of_batch(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.BinaryOperation):
        return _speaks_of_batch(node.left) or _speaks_of_batch(node.right)
    return is_batch_size(last_name(node))
