"""Facts of a Python file that may determine a batch size: definitions, options, calls, loaders.

One pass over the syntax tree. A *definition* gives a name a value: an assignment, a parameter's
default, a field, a dictionary entry, a command line option.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from stepscope.base.syntax_trees import parse_source
from stepscope.errors import BatchError

Scope = tuple[str, ...]
PROVIDERS = ("stepscope_input_provider", "skyline_input_provider", "deepview_input_provider")
_READER_ENDS = ("DataLoader", "BatchSampler", "BucketIterator")  # what they are given, nothing else reads
_EVALUATING = ("evaluate", "predict")  # methods of models, as Keras and scikit-learn name them
_LOADER_ENDS = (*_READER_ENDS, "DataModule")
_OPTION_CALLS = ("add_argument", "option", "add_option")
LINE_END = re.compile(r"\r\n|\n|\r")  # as Python reads them
_FLAG_CALLS = ("DEFINE_integer", "DEFINE_int")
_LARGEST = 10**9  # number that may be a batch size
_MOST_DIGITS = 20  # of a number in quotes

_LONGEST_SOURCE, _LONGEST_LINE = 400_000, 20_000  # characters; half a second to parse
_MOST_LINES = 30_000  # short ones of 400,000 characters take seconds


@dataclass(frozen=True)
class Definition:
    """A name and the expression that gives it a value."""

    kind: str
    name: str
    scope: Scope  # the functions and classes around it, outermost first
    value: ast.expr | None  # the expression; None where there is none (a parameter without default)
    option: str | None = None
    holder: str = ""  # what the dictionary that it is an entry of is bound to


@dataclass(frozen=True)
class SourceCall:
    """A call: what is called by its last name, the arguments, and what the result is bound to."""

    name: str
    scope: Scope
    node: ast.Call
    bound_to: str


@dataclass
class SourceFacts:
    """All that one file says."""

    text: str
    tree: ast.Module
    line_starts: Sequence[int]
    definitions: list[Definition] = field(default_factory=list)
    calls: list[SourceCall] = field(default_factory=list)
    parameters: dict[Scope, list[str]] = field(default_factory=dict)
    spellings: dict[str, list[str]] = field(default_factory=dict)  # all names of each option, by its own
    strings: list[str] = field(default_factory=list)

    @property
    def loaders(self) -> list[SourceCall]:
        """Calls that make batches."""
        return [call for call in self.calls if call.name.endswith(_LOADER_ENDS)]

    def span(self, node: ast.expr) -> tuple[int, int]:
        """The first character of an expression, and the one after its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = self._offset(node.lineno, node.col_offset)
        return first, self._offset(node.end_lineno, node.end_col_offset)

    def spelling_of(self, option: str, words: Sequence[str]) -> str | None:
        """The name by which a command line gives an option, the last one counts; None if it does not.

        `-b` and the beginning of a name that no other option has set `--batch-size`, too.
        """
        own = self.spellings.get(option, [option])
        others = [name for names in self.spellings.values() for name in names if name not in own]
        for key in map(option_name, reversed(words)):
            begins = [any(name.startswith(key) for name in names) for names in (own, others)]
            if key in own or (len(key) > 2 and begins == [True, False]):
                return key
        return None

    def _offset(self, line: int, column: int) -> int:
        """The character at a line from 1 and a column in bytes of UTF-8."""
        start = self.line_starts[line - 1]
        return start + len(self.text[start : start + column].encode()[:column].decode())


def option_name(word: str) -> str:
    """The option that a word of a command line sets: without the value in `--lr=1` and `-b64`."""
    return word[:2] if re.fullmatch(r"-[A-Za-z]\d+", word) else word.partition("=")[0]


@lru_cache(maxsize=4)  # a drag, and actions for several numbers, ask about one text
def read_facts(text: str, path: str) -> SourceFacts:
    """What a file says, shared by callers: not to be changed; raises BatchError, with the line, if it is no
    Python that parses."""
    starts = [0, *(match.end() for match in LINE_END.finditer(text))]
    facts = SourceFacts(text, parse_python(text, path), starts)
    _collect(facts)
    return facts


def parse_python(text: str, path: str) -> ast.Module:
    """The syntax tree of a file; raises BatchError if it is no Python that parses; names the line."""
    _check_length(text, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code, which is not run
            return parse_source(text, path)
    except SyntaxError as error:
        line = error.lineno or 1
        raise BatchError(f"syntax error at {path}:{line}: {error.msg}", path, line) from error
    except UnicodeEncodeError as error:
        raise BatchError(f"{path} contains an incomplete character: {error.reason}", path) from error
    except ValueError as error:
        raise BatchError(f"syntax error at {path}:1: {error}", path, 1) from error
    except (RecursionError, MemoryError) as error:
        raise BatchError(f"cannot parse {path}: it is nested too deeply", path) from error


def _check_length(text: str, path: str) -> None:
    """Refuse what takes seconds to parse, in which an editor's server answers nothing."""
    if len(text) > _LONGEST_SOURCE:
        raise BatchError(f"{path} is too long to be searched: {len(text):,} characters", path)
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        raise BatchError(f"{path} is too long to be searched: {len(lines):,} lines", path)
    longest = max(map(len, lines), default=0)
    if longest > _LONGEST_LINE:
        raise BatchError(f"{path} has a line of {longest:,} characters; nobody wrote it by hand", path)


@dataclass(frozen=True)
class _NodePlace:
    """Where a node is: the functions and classes around it, and what its value is bound to."""

    scope: Scope = ()
    in_class: bool = False
    bound: str = ""


def _collect(facts: SourceFacts) -> None:
    """Visit every node, in the order of the file; without recursion, however deep it nests."""
    collector = _Collector(facts)
    pending: list[tuple[ast.AST, _NodePlace]] = [(facts.tree, _NodePlace())]
    while pending:
        node, place = pending.pop()
        inside = collector.visit(node, place)
        # Positions inside an f-string are wrong before Python 3.12.
        children = [] if isinstance(node, ast.JoinedStr) else _children(node)
        pending += [(child, inside) for child in reversed(children)]


def _children(node: ast.AST) -> list[ast.AST]:
    """Decorators come before what they decorate; keys next to their values."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [part for pair in pairs for part in pair if part is not None]
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        decorators = node.decorator_list
        return [*decorators, *(child for child in children if child not in decorators)]
    return children


class _Collector:
    def __init__(self, facts: SourceFacts) -> None:
        self.facts = facts

    def visit(self, node: ast.AST, place: _NodePlace) -> _NodePlace:
        """Collect what a node says; returns where its children are."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._function(node, place)
        if isinstance(node, ast.ClassDef):
            return _NodePlace((*place.scope, node.name), in_class=True, bound=place.bound)
        if isinstance(node, ast.Assign):
            return self._assignment(node.targets, node.value, place)
        if isinstance(node, ast.AnnAssign):
            return self._assignment([node.target], node.value, place)
        if isinstance(node, ast.NamedExpr):
            self._assign(node.target, node.value, place)
        elif isinstance(node, ast.Dict):
            for key, entry in zip(node.keys, node.values, strict=True):
                if (name := text_of(key)) is not None:
                    self._define("entry", name, entry, place)
        elif isinstance(node, ast.Call):
            self._call(node, place)
        elif (value := text_of(node)) is not None and len(value) < 200:
            self.facts.strings.append(value)
        return place

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: _NodePlace) -> _NodePlace:
        inside = _NodePlace((*place.scope, node.name), bound=place.bound)
        everyone = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.facts.parameters[inside.scope] = [parameter.arg for parameter in everyone]
        kind = "provider" if node.name in PROVIDERS else "parameter"
        for parameter, default in zip(everyone, _defaults(node.args), strict=True):
            value = default and (_field_default(default) or default)
            self._define(kind, parameter.arg, value, inside)
        return inside

    def _assignment(
        self, targets: Sequence[ast.expr], value: ast.expr | None, place: _NodePlace
    ) -> _NodePlace:
        if value is not None:
            for target in targets:
                self._assign(target, value, place)
        return replace(place, bound=last_name(targets[0]))

    def _assign(self, target: ast.expr, value: ast.expr, place: _NodePlace) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for part, its in zip(target.elts, value.elts, strict=False):
                self._assign(part, its, place)
        elif isinstance(target, ast.Name):
            kind = "field" if place.in_class else "constant"
            self._define(kind, target.id, _field_default(value) or value, place)
        elif isinstance(target, ast.Attribute):
            self._define("attribute", target.attr, value, place)
        elif isinstance(target, ast.Subscript) and (key := text_of(target.slice)):
            self._define("entry", key, value, place)

    def _define(
        self, kind: str, name: str, value: ast.expr | None, place: _NodePlace, option: str | None = None
    ) -> None:
        self.facts.definitions.append(Definition(kind, name, place.scope, value, option, place.bound))

    def _call(self, node: ast.Call, place: _NodePlace) -> None:
        name = last_name(node.func)
        self.facts.calls.append(SourceCall(name, place.scope, node, place.bound))
        if name in _OPTION_CALLS:
            self._option(node, place)
        elif name in _FLAG_CALLS:
            self._flag(node, place)
        elif not name.endswith(_READER_ENDS):
            kind = "entry" if name == "dict" else "argument"
            place = replace(place, bound=place.bound or (name if name in _EVALUATING else ""))
            for argument in node.keywords:
                if argument.arg is not None:
                    self._define(kind, argument.arg, argument.value, place)

    def _option(self, node: ast.Call, place: _NodePlace) -> None:
        """argparse, optparse and click: the first long name gives the attribute."""
        names = [text for value in positional(node) if (text := text_of(value))]
        given = [name.partition("/")[0] for name in names if name.startswith("-")]
        option = next((name for name in given if name.startswith("--")), None) or next(iter(given), None)
        self.facts.spellings.setdefault(option or "", []).extend(given)
        plain = next((name for name in names if not name.startswith("-")), None)
        dest = text_of(keyword(node, "dest")) or plain or (option or "").lstrip("-")
        self._define("option", dest.replace("-", "_"), keyword(node, "default"), place, option)

    def _flag(self, node: ast.Call, place: _NodePlace) -> None:
        """absl: `flags.DEFINE_integer("batch_size", 32, "help")`."""
        values = positional(node)
        name = text_of(values[0]) if values else None
        default = values[1] if len(values) > 1 else keyword(node, "default")
        if name:
            self.facts.spellings[f"--{name}"] = [f"--{name}", f"-{name}"]
            self._define("option", name, default, place, f"--{name}")


def _defaults(arguments: ast.arguments) -> list[ast.expr | None]:
    count = len(arguments.posonlyargs) + len(arguments.args)
    missing = count - len(arguments.defaults)
    return [*[None] * missing, *arguments.defaults, *arguments.kw_defaults]


def _field_default(value: ast.expr) -> ast.expr | None:
    """The default in `field(default=32)`, `Field(32)` and `typer.Option(32)`."""
    if not isinstance(value, ast.Call):
        return None
    if last_name(value.func) not in ("field", "Field", "attrib", "ib", "Option", "Argument"):
        return None
    return keyword(value, "default") or next(iter(positional(value)), None)


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
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def positional(call: ast.Call) -> list[ast.expr]:
    """The values of the positional arguments."""
    return [value for value in call.args if not isinstance(value, ast.Starred)]


def written_number(node: ast.expr | None, least: int = 1) -> int | None:
    """The whole number from `least` that an expression of literals spells; None for anything else."""
    value = _value(node)
    return value if value is not None and least <= value <= _LARGEST else None


def _value(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS:
            return int(value)
        return value if type(value) is int else None  # a bool is an int
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        return None if left is None or right is None else _combine(node.op, left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return _value(node.args[0]) if len(node.args) == 1 and not node.keywords else None
    return None


def _combine(operator: ast.operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Pow) and 0 <= right < 64 and abs(left) <= 1024:
        return int(left**right)
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    return left << right if isinstance(operator, ast.LShift) and 0 <= right < 64 else None


def write_number(text: str, value: int) -> str:
    """`value` in the place of `text`: quoted where that was, in plain digits otherwise.

    Example:
        >>> write_number("'32'", 48), write_number("4 * 8", 48)
        ("'48'", '48')
    """
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:
        return f"{text[0]}{value}{text[0]}"
    return str(value)
