"""What a Python file says that may bear on a batch size: definitions, options, calls, loaders.

One pass over libcst's tree. A *definition* gives a name a value: an assignment, a parameter's
default, a field, a dictionary entry, a command line option.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from stepscope.errors import BatchError
from stepscope.predict.nodes import keyword, last_name, positional, text_of

Scope = tuple[str, ...]
PROVIDERS = ("stepscope_input_provider", "skyline_input_provider")
_LOADER_ENDS = ("DataLoader", "BatchSampler", "BucketIterator", "DataModule")
_OPTION_CALLS = ("add_argument", "option", "add_option")
_FLAG_CALLS = ("DEFINE_integer", "DEFINE_int")


@dataclass(frozen=True)
class Definition:
    """A name and the expression that gives it a value.

    Attributes:
        kind: as `Site.kind`.
        name: the name.
        scope: the functions and classes around it, outermost first.
        value: the expression; None where there is none (a parameter without default).
        option: the command line option that sets it.
        holder: what the dictionary that it is an entry of is bound to.
    """

    kind: str
    name: str
    scope: Scope
    value: cst.BaseExpression | None
    option: str | None = None
    holder: str = ""


@dataclass(frozen=True)
class Call:
    """A call: what is called by its last name, the arguments, and what the result is bound to."""

    name: str
    scope: Scope
    node: cst.Call
    bound_to: str


@dataclass
class Facts:
    """All that one file says."""

    module: cst.Module
    spans: dict[cst.CSTNode, CodeSpan]
    definitions: list[Definition] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    parameters: dict[Scope, list[str]] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)

    @property
    def loaders(self) -> list[Call]:
        """Calls that make batches."""
        return [call for call in self.calls if call.name.endswith(_LOADER_ENDS)]


def read_facts(text: str, path: str) -> Facts:
    """Parse a file and collect what it says.

    Raises:
        BatchError: it is no Python that parses; names the line.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        line, reason = _complaint(text, path, error)
        raise BatchError(
            f"expected Python that parses, found an error at {path}:{line}: {reason}", path, line
        ) from error
    facts = Facts(wrapper.module, dict(wrapper.resolve(ByteSpanPositionProvider)))
    wrapper.module.visit(_Collector(facts))
    return facts


def _complaint(text: str, path: str, error: cst.ParserSyntaxError) -> tuple[int, str]:
    """Line and reason in Python's own words, which are better than libcst's."""
    try:
        ast.parse(text, path)
    except SyntaxError as ours:
        return ours.lineno or error.raw_line, ours.msg
    except ValueError as ours:
        return 1, str(ours)
    return error.raw_line, error.message.splitlines()[0]


class _Collector(cst.CSTVisitor):
    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts
        self.scope: list[str] = []
        self.classes: list[str] = []
        self.bound: list[str] = [""]

    # -- scopes

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        name = node.name.value
        scope = (*self.scope, name)
        parameters = node.params
        everyone = [*parameters.posonly_params, *parameters.params, *parameters.kwonly_params]
        self.facts.parameters[scope] = [one.name.value for one in everyone]
        kind = "provider" if name in PROVIDERS else "parameter"
        for one in everyone:
            value = one.default and (_field_default(one.default) or one.default)
            self._define(kind, one.name.value, value, scope=scope)
        self.scope.append(name)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.scope.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.scope.append(node.name.value)
        self.classes.append(".".join(self.scope))

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.scope.pop()
        self.classes.pop()

    # -- definitions

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._assign(target.target, node.value)
        self.bound.append(last_name(node.targets[0].target))

    def leave_Assign(self, original_node: cst.Assign) -> None:
        self.bound.pop()

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)
        self.bound.append(last_name(node.target))

    def leave_AnnAssign(self, original_node: cst.AnnAssign) -> None:
        self.bound.pop()

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._assign(node.target, node.value)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List) and isinstance(value, cst.Tuple | cst.List):
            for one, its in zip(target.elements, value.elements, strict=False):
                self._assign(one.value, its.value)
        elif isinstance(target, cst.Name):
            self._define(self._kind_here(), target.value, _field_default(value) or value)
        elif isinstance(target, cst.Attribute):
            self._define("attribute", target.attr.value, value)
        elif isinstance(target, cst.Subscript) and text_of(target.slice[0].slice):
            self._define("entry", text_of(target.slice[0].slice) or "", value)

    def _kind_here(self) -> str:
        in_class = bool(self.classes) and self.classes[-1] == ".".join(self.scope)
        return "field" if in_class else "constant"

    def visit_DictElement(self, node: cst.DictElement) -> None:
        key = text_of(node.key)
        if key is not None:
            self._define("entry", key, node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = text_of(node)
        if value is not None and len(value) < 200:
            self.facts.strings.append(value)

    def _define(
        self,
        kind: str,
        name: str,
        value: cst.BaseExpression | None,
        option: str | None = None,
        scope: Sequence[str] | None = None,
    ) -> None:
        where = tuple(self.scope if scope is None else scope)
        one = Definition(kind, name, where, value, option, self.bound[-1])
        self.facts.definitions.append(one)

    # -- calls

    def visit_Call(self, node: cst.Call) -> None:
        name = last_name(node.func)
        self.facts.calls.append(Call(name, tuple(self.scope), node, self.bound[-1]))
        if name in _OPTION_CALLS:
            self._option(node)
        elif name in _FLAG_CALLS:
            self._flag(node)
        else:
            self._keywords(node, name)

    def _option(self, node: cst.Call) -> None:
        """argparse, optparse and click: the first long name tells the attribute."""
        names = [text for value in positional(node) if (text := text_of(value))]
        long = next((name for name in names if name.startswith("--")), None)
        short = next((name for name in names if name.startswith("-")), None)
        option = (long or short or "").partition("/")[0] or None
        plain = next((name for name in names if not name.startswith("-")), None)
        dest = text_of(keyword(node, "dest")) or plain or (option or "").lstrip("-")
        default = keyword(node, "default")
        self._define("option", dest.replace("-", "_"), default, option)

    def _flag(self, node: cst.Call) -> None:
        """absl: `flags.DEFINE_integer("batch_size", 32, "help")`."""
        values = positional(node)
        name = text_of(values[0]) if values else None
        default = values[1] if len(values) > 1 else keyword(node, "default")
        if name:
            self._define("option", name, default, f"--{name}")

    def _keywords(self, node: cst.Call, name: str) -> None:
        kind = "entry" if name == "dict" else "argument"
        for argument in node.args:
            if argument.keyword is not None:
                self._define(kind, argument.keyword.value, argument.value)


def _field_default(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The default in `field(default=32)`, `Field(32)` and `typer.Option(32)`."""
    if not isinstance(value, cst.Call):
        return None
    if last_name(value.func) not in ("field", "Field", "attrib", "ib", "Option", "Argument"):
        return None
    return keyword(value, "default") or next(iter(positional(value)), None)
