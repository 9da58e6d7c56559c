"""The line that has a number which a call takes from elsewhere: a variable, an option, a settings file."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stepscope.analyze.finding import Patch, only_call
from stepscope.base.syntax_trees import parse_source
from stepscope.errors import BatchError
from stepscope.models.batch_size.resolve_number import Resolver
from stepscope.models.batch_size.source_facts import (
    Definition,
    SourceFacts,
    keyword,
    read_facts,
    written_number,
)
from stepscope.models.batch_size.source_files import entries, read_text, settings_files
from stepscope.trace.trace import Metadata


class NumberPatch(NamedTuple):
    """The patch of a number that is written elsewhere; None if its line is not known."""

    patch: Patch | None


def patch_of_origin(
    metadata: Metadata, what: str, arguments: Mapping[str, str | None], name: str = ""
) -> NumberPatch | None:
    """The patch of the number that the only call that creates such an object takes from elsewhere.

    Returns:
        None if the call has the number itself, or none; the files are read as they are now.
    """
    call = only_call(metadata, what, name)
    wanted = next(((key, value) for key, value in arguments.items() if value and value.isdigit()), None)
    if call is None or wanted is None:
        return None
    node = _parsed(str(call["call"]))
    given = keyword(node, wanted[0]) if node else None
    spreads = node is not None and any(one.arg is None for one in node.keywords)
    if given is None and not spreads:
        return None
    if given is not None and written_number(given, least=0) is not None:
        return None
    try:
        lines = list(dict.fromkeys(_lines(metadata, call, *wanted)))
    except (BatchError, RecursionError):
        lines = []
    return NumberPatch(lines[0] if len(lines) == 1 else None)


def _parsed(call: str) -> ast.Call | None:
    try:
        node = parse_source(call, mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None


def _lines(metadata: Metadata, call: Mapping[str, Any], key: str, value: str) -> Iterator[Patch]:
    """The lines that may have the number: of the same file, else of settings files."""
    path, capture = str(call["file"]), metadata.capture
    facts = read_facts(read_text(path), path)
    resolver, site = Resolver(facts, least=0), _site(facts, call)
    given = keyword(site.value, key) if site and isinstance(site.value, ast.Call) else None
    options = [str(word) for word in capture.get("command") or ()]
    origins = resolver.follow(given, site) if site and given is not None else []
    for origin in origins:
        passed = origin.option and any(word.split("=")[0] == origin.option for word in options)
        if origin.node is not None and not passed:
            yield _replaced(path, facts.text, *facts.span(origin.node), value)
    if not origins:
        keys = resolver.missing or {key}
        used = max((one.get("workers") or 0 for one in capture.get("loaders") or ()), default=0)
        for file in settings_files(path, options, facts.strings, capture.get("cwd")):
            text = read_text(str(file))
            for entry in entries(text, str(file)):
                if entry.name.rpartition(".")[2] in keys and entry.value == used:
                    yield _replaced(str(file), text, entry.start, entry.end, value)


def _site(facts: SourceFacts, call: Mapping[str, Any]) -> Definition | None:
    """The call in the file as it is now; None if it is no longer there."""
    for one in facts.calls:
        first, last = facts.span(one.node)
        if facts.text[first:last] == call["call"] and one.node.lineno == call["line"]:
            return Definition("loader", one.name, one.scope, one.node)
    return None


def _replaced(path: str, text: str, start: int, end: int, value: str) -> Patch:
    """The line of a number, with another one."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    before = text[first:last]
    after = text[first:start] + value + text[end:last]
    return Patch(path, text.count("\n", 0, first) + 1, before.strip(), after.strip())
