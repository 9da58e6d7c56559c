"""A place in a source file that sets the batch size, and the edit that changes it.

An edit replaces the characters of the number. The syntax tree of the new text must then be that of
the old one with the new number in that place; else nothing is changed.
"""

import ast
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from stepscope.errors import BatchError, one_line
from stepscope.models.batch_size.source_facts import (
    SourceFacts,
    parse_python,
    read_facts,
    text_of,
    write_number,
    written_number,
)

_WORDS = {
    "provider": "the default of the input provider,",
    "option": "the command line option",
    "loader": "the loader's argument",
    "parameter": "the default of the parameter",
    "field": "the field",
    "constant": "the variable",
    "attribute": "the attribute",
    "entry": "the dictionary entry",
    "argument": "the argument",
    "setting": "the setting",
}

# Of a file of settings that is parsed before and after it is changed, in half a second each.
_LONGEST_SETTINGS, _MOST_VALUES = 50_000, 50_000  # characters, and values


@dataclass(frozen=True)
class Site:
    """One number in a file."""

    # What it is: provider, option, loader, parameter, field, constant, attribute, entry, argument or setting
    # (of a YAML, JSON or TOML file).
    kind: str
    path: str
    name: str  # what it is called there: `batch_size`, `--batch-size`, `train.batch_size`
    value: int
    text: str  # how it is written: `32`, `0x20`, `4 * 8`, `"32"`
    start: int  # first character, counted from the start of the text
    end: int
    line: int  # line, from 1
    column: int  # character in the line, from 0
    role: str = "train"  # what the batches are for, train or evaluate
    option: str | None = None  # the command line option that sets it, where there is one
    provider: str | None = None  # the provider function whose default it is, where it is one

    @property
    def where(self) -> str:
        """`train.py:12`."""
        return f"{self.path}:{self.line}"

    @property
    def sentence(self) -> str:
        """A description for users: `the option --batch-size, 32, at train.py:12`."""
        return f"{_WORDS[self.kind]} {self.name}, {self.value}, at {self.where}"

    def at(self, **changes: Any) -> "Site":
        return replace(self, **changes)


@dataclass(frozen=True)
class SiteChoice:
    """One of several candidates, recognized again after other lines of the file were edited."""

    path: str
    name: str
    place: int  # its place among the candidates of that name in that file, from 0
    count: int  # how many there are; with more or fewer, it is no longer known which was meant

    @classmethod
    def of(cls, site: Site, candidates: Iterable[Site]) -> "SiteChoice":
        alike = _alike(candidates, site.path, site.name)
        place = [candidate.start for candidate in alike].index(site.start)
        return cls(site.path, site.name, place, len(alike))

    def among(self, candidates: Iterable[Site]) -> Site | None:
        """The chosen candidate, or None if it is not clear which one it is."""
        alike = _alike(candidates, self.path, self.name)
        return alike[self.place] if len(alike) == self.count else None


def _alike(sites: Iterable[Site], path: str, name: str) -> list[Site]:
    named = (site for site in sites if site.name == name)
    same = (site for site in named if os.path.realpath(site.path) == os.path.realpath(path))
    return sorted(same, key=lambda site: site.start)


@dataclass(frozen=True)
class Edit:
    """One replacement in one file."""

    path: str
    start: int  # first character replaced, counted from the start of the text
    end: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """`text` with the replacement made; raises BatchError if the text has changed there."""
        if text[self.start : self.end] != self.old:
            raise BatchError(
                f"expected {self.old!r} at character {self.start} of {self.path}, found "
                f"{text[self.start : self.end]!r}; look for the batch size again",
                self.path,
                text.count("\n", 0, self.start) + 1,
            )
        return text[: self.start] + self.new + text[self.end :]


def edit_site(text: str, site: Site, batch: int) -> Edit:
    """The edit that makes `batch` of the batch size at `site`; raises BatchError if the text is no longer
    what the site was found in, or the change would touch more than the number."""
    if batch < 1:
        raise BatchError(f"expected a batch size of at least 1, found {batch}")
    edit = Edit(site.path, site.start, site.end, site.text, write_number(site.text, batch))
    check = _check_python if site.path.endswith((".py", ".pyi")) else _check_setting
    check(text, edit.apply(text), site, edit)
    return edit


def _check_python(old: str, new: str, site: Site, edit: Edit) -> None:
    facts = read_facts(old, site.path)
    node = _expression_at(facts, site)
    if node is None:
        raise _refusal(site)
    quoted = text_of(node) is not None
    for before, after in _pairs(facts.tree, parse_python(new, site.path), node):
        if before is node:
            right = written_number(after) == int(edit.new.strip("\"'"))
            same = right and quoted == (text_of(after) is not None)
        else:
            same = _plain_fields(before) == _plain_fields(after)
        if not same:
            raise _refusal(site)


def _expression_at(facts: SourceFacts, site: Site) -> ast.expr | None:
    """The expression that covers the site's characters, no more and no less."""
    line = site.line
    near = (
        node
        for node in ast.walk(facts.tree)
        if isinstance(node, ast.expr) and node.lineno == line and written_number(node) is not None
    )
    return next((node for node in near if facts.span(node) == (site.start, site.end)), None)


def _pairs(old: ast.AST, new: ast.AST, leaf: ast.AST) -> Iterator[tuple[ast.AST, Any]]:
    """Nodes of two trees by their place; of `leaf` none of its parts."""
    pending: list[tuple[ast.AST, Any]] = [(old, new)]
    while pending:
        before, after = pending.pop()
        yield before, after
        if before is not leaf:
            pairs = zip_longest(ast.iter_child_nodes(before), ast.iter_child_nodes(after))
            pending += [(part, other) for part, other in pairs if part is not None]


def _plain_fields(node: ast.AST | None) -> Any:
    """A node's class, names and literals, and how many parts it has."""
    if node is None:
        return None
    shape = [
        len(value) if isinstance(value, list) else repr(value)
        for _, value in ast.iter_fields(node)
        if not isinstance(value, ast.AST)
    ]
    return type(node), shape


def _check_setting(old: str, new: str, site: Site, edit: Edit) -> None:
    """If a parser is installed, check that only the value of the site's key changed, to `batch`."""
    parse = _parser(site.path)
    if parse is None:
        return
    if len(old) > _LONGEST_SETTINGS:
        raise BatchError(f"{site.path} is too long to be checked; change {site.text} by hand", site.path)
    try:
        before, after = dict(_leaves(parse(old))), dict(_leaves(parse(new)))
    except Exception as error:
        raise BatchError(f"cannot parse {site.path}: {one_line(error)}", site.path) from error
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if edit.old == edit.new and not changed:
        return
    if len(changed) != 1:
        raise _refusal(site)
    (key,) = changed
    expected = (site.name.rpartition(".")[2], str(site.value), edit.new.strip("\"'"))
    if (str(key[-1]).rpartition(".")[2], str(before.get(key)), str(after.get(key))) != expected:
        raise _refusal(site)


def _refusal(site: Site) -> BatchError:
    return BatchError(
        f"changing {site.text} at {site.where} would change more than that; edit it by hand",
        site.path,
        site.line,
    )


def _parser(path: str) -> Callable[[str], Any] | None:
    if path.endswith(".json"):
        return json.loads
    module = "tomllib" if path.endswith(".toml") else "yaml"
    try:
        parser: Any = __import__(module)
    except ImportError:  # the script's own environment reads it; ours need not
        return None
    return parser.loads if module == "tomllib" else lambda text: list(parser.safe_load_all(text))


def _leaves(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The values that are no dict and no list, with their paths; a YAML file may nest aliases."""
    leaves: list[tuple[tuple[Any, ...], Any]] = []
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return leaves
        path, item = waiting.pop()
        if isinstance(item, dict | list):
            inner = item.items() if isinstance(item, dict) else enumerate(item)
            waiting += [((*path, key), each) for key, each in inner]
        else:
            leaves.append((path, item))
    raise ValueError(f"it has more than {_MOST_VALUES:,} values, with what aliases repeat")
