"""From the expression that a loader is given back to the number that it comes from.

`DataLoader(data, batch_size=args.batch_size)` leads to the option `--batch-size`; a name leads to
its assignment, a parameter to what callers pass or to its default, an attribute or a key to
whatever defines one of that name. An expression that leads nowhere gives nothing; one with several
possible origins gives them all.
"""

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from stepscope.models.batch_size.source_facts import (
    Definition,
    SourceCall,
    SourceFacts,
    keyword,
    last_name,
    positional,
    text_of,
    written_number,
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words that may be next to "batch" without making it something else (num_batches, batch_norm).
_BESIDE = frozenset(
    _WORD.findall(
        "size sizes sz bs train training trainer per device gpu rank worker replica core micro mini global "
        "local total effective base default initial init max n num samples images ims imgs the step b"
    )
)
_EVALUATE = frozenset(
    _WORD.findall(
        "eval evaluate evaluation val valid validation validate dev test testing infer inference pred "
        "predict prediction gen generation sample sampling benchmark calibration"
    )
)
_SHORT = {"bs", "bsz", "batchsize", "minibatch", "microbatch", "batchsz"}
_MOST_VISITS = 500_000  # of definitions and calls in one file: half a second
_VISITS_OF_ORIGIN = 20  # what its caller does with one number takes as long
_WRAPPERS = ("int", "max", "min", "abs", "round")
_GETTERS = ("get", "pop", "getattr", "getenv")
_PARAMETERS = ("parameter", "provider")
_NAMES = ("constant", "parameter", "provider", "field")
# `Config(batch_size=32)` sets what `config.batch_size` reads.
_KEYS = ("option", "attribute", "field", "entry", "argument")


def words(name: str) -> list[str]:
    """`per_device_trainBatch` as per, device, train, batch."""
    return [word.lower() for word in _WORD.findall(name)]


def is_batch_size(name: str) -> bool:
    """Whether this is a name for a number of samples in a batch."""
    core = [word for word in words(name) if word not in _EVALUATE]
    if not core or not any(word == "batch" or word in _SHORT for word in core):
        return False
    known = all(word in _BESIDE or word == "batch" or word in _SHORT for word in core)
    return known and name.isascii()


def is_evaluation(name: str) -> bool:
    """Whether a name refers to evaluation data: `val_loader`, `test_set`."""
    return any(word in _EVALUATE for word in words(name)) and not is_training(name)


def is_training(name: str) -> bool:
    """Whether a name refers to training data."""
    return any(word in ("train", "training", "trainer") for word in words(name))


@dataclass(frozen=True)
class NumberOrigin:
    """A number, what it defines, and the command line option on the way to it."""

    node: ast.expr | None
    definition: Definition
    option: str | None = None


class Resolver:
    """Follows expressions within one file, to numbers from `least`.

    Methods raise RecursionError for files in which that takes more than a second.

    Attributes:
        missing: keys that the file reads but does not define: perhaps settings in another file.
    """

    def __init__(self, facts: SourceFacts, least: int = 1) -> None:
        self.facts = facts
        self._least = least
        self.missing: set[str] = set()
        self._by_name: dict[str, list[Definition]] = {}
        for definition in facts.definitions:
            self._by_name.setdefault(definition.name, []).append(definition)
        self._known: dict[int, list[NumberOrigin]] = {}
        self._left = _MOST_VISITS

    def follow(self, node: ast.expr, at: Definition) -> list[NumberOrigin]:
        """The numbers that `node` may come from, each once; `at` is what it is the value of, which
        a number written right here defines."""
        found = (_through(at, origin) for origin in self._follow(node, at))
        origins = list({id(origin.node): origin for origin in found}.values())
        self._visit(_VISITS_OF_ORIGIN * len(origins))
        return origins

    def _visit(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise RecursionError(
                "a number may come from more places than can be looked at while somebody types"
            )

    def _follow(self, node: ast.expr | None, at: Definition) -> Iterator[NumberOrigin]:
        if node is None:
            return
        if written_number(node, self._least) is not None:
            yield NumberOrigin(node, at, at.option)
        elif isinstance(node, ast.Name):
            yield from self._name(node.id, at)
        elif isinstance(node, ast.Attribute | ast.Subscript):
            yield from self._key(last_name(node))
        elif isinstance(node, ast.Call):
            yield from self._call(node, at)
        else:
            for part in _parts(node):
                yield from self._follow(part, at)

    def origins(self, definition: Definition) -> list[NumberOrigin]:
        """The numbers that a definition may have; none while they are being resolved (recursion)."""
        key = id(definition)
        if key not in self._known:
            self._known[key] = []
            origins = self._follow(definition.value, definition)
            if definition.kind in _PARAMETERS:
                origins = self._parameter(definition)
            self._known[key] = [_through(definition, origin) for origin in origins]
        return self._known[key]

    def _defined(self, name: str, kinds: Collection[str]) -> list[Definition]:
        definitions = self._by_name.get(name, ())
        self._visit(len(definitions))
        return [definition for definition in definitions if definition.kind in kinds]

    def _name(self, name: str, at: Definition) -> Iterator[NumberOrigin]:
        """The innermost scope that defines the name counts, as in Python."""
        defined = self._defined(name, _NAMES)
        for length in range(len(at.scope), -1, -1):
            inside = [definition for definition in defined if definition.scope == at.scope[:length]]
            for definition in inside:
                yield from self.origins(definition)
            if inside:
                return

    def _parameter(self, definition: Definition) -> Iterator[NumberOrigin]:
        """The values that callers in this file pass, and the default if one of them passes none."""
        scope = definition.scope
        self._visit(len(self.facts.calls))
        called = scope[-2] if scope[-1] == "__init__" and len(scope) > 1 else scope[-1]
        passed = [(self._passed(call, definition), call) for call in self.facts.calls if call.name == called]
        self._visit(_VISITS_OF_ORIGIN * len(passed))
        for value, call in passed:
            here = Definition("argument", definition.name, call.scope, value)
            yield from self._follow(value, here)
        if definition.value is not None and (not passed or any(value is None for value, _ in passed)):
            yield from self._follow(definition.value, definition)
        if definition.value is None and not passed:
            for option in self._defined(definition.name, ("option",)):
                yield from self.origins(option)

    def _passed(self, call: SourceCall, definition: Definition) -> ast.expr | None:
        names = [n for n in self.facts.parameters[definition.scope] if n not in ("self", "cls")]
        values = positional(call.node)
        place = names.index(definition.name)
        return keyword(call.node, definition.name) or (values[place] if place < len(values) else None)

    def _key(self, name: str) -> list[NumberOrigin]:
        """`args.batch_size`, `self.batch_size`, `config["batch_size"]`."""
        valued = (definition for definition in self._defined(name, _KEYS) if definition.value is not None)
        origins = [origin for definition in valued for origin in self.origins(definition)]
        if not origins:
            self.missing.add(name)
        return origins

    def _call(self, node: ast.Call, at: Definition) -> Iterator[NumberOrigin]:
        """`cfg.get("batch_size", 32)`, `getattr(args, "batch_size", 32)`, `int(x)`."""
        values = positional(node)
        name = last_name(node.func)
        if name in _WRAPPERS:
            for value in values:
                if written_number(value) is None:
                    yield from self._follow(value, at)
        elif name in _GETTERS:
            key = next((text for value in values if (text := text_of(value))), None)
            origins = self._key(key) if key else []
            fallback = self._follow(values[-1], at) if len(values) > 1 else iter(())
            yield from origins or fallback


def _through(definition: Definition, origin: NumberOrigin) -> NumberOrigin:
    """Note the command line option passed on the way."""
    return NumberOrigin(origin.node, origin.definition, origin.option or definition.option)


def _parts(node: ast.expr) -> list[ast.expr]:
    """`a or 32`, `a if b else c`, `a // world`: each side that is no mere factor."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp):
        return [side for side in (node.left, node.right) if _speaks_of_batch(side)]
    return []


def _speaks_of_batch(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _speaks_of_batch(node.left) or _speaks_of_batch(node.right)
    return is_batch_size(last_name(node))
