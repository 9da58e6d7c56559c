"""Change a batch size where it is written, and nothing else.

The new text is made twice: by replacing the characters of the number, and by changing the node in
libcst's tree. The two must agree; else nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from stepscope.errors import BatchError
from stepscope.predict.facts import read_facts
from stepscope.predict.site import Site
from stepscope.predict.tokens import write_number


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: the file.
        start: first character replaced, counted from the start of the text.
        end: the character after the last.
        old: what stands there.
        new: what shall stand there.
    """

    path: str
    start: int
    end: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """`text` with the replacement made.

        Raises:
            BatchError: the text has changed there.
        """
        if text[self.start : self.end] != self.old:
            raise BatchError(
                f"expected {self.old!r} at character {self.start} of {self.path}, found "
                f"{text[self.start : self.end]!r}; look for the batch size again",
                self.path,
                text.count("\n", 0, self.start) + 1,
            )
        return text[: self.start] + self.new + text[self.end :]

    def undo(self) -> Edit:
        """The edit that restores the text."""
        return Edit(self.path, self.start, self.start + len(self.new), self.new, self.old)


def edit_site(text: str, site: Site, batch: int) -> Edit:
    """The edit that makes `batch` of the batch size at `site`.

    Args:
        text: the text of the file that the site is in.
        site: as `find_site` gave it for this very text.
        batch: the new batch size.

    Returns:
        The edit; `edit.apply(text)` is the new text.

    Raises:
        BatchError: the text is no longer what the site was found in, or the change would touch
            more than the number.

    Example:
        >>> site = find_site("batch_size = 32  # per GPU\\n", "train.py")  # doctest: +SKIP
        >>> edit_site(text, site, 48).apply(text)  # doctest: +SKIP
        'batch_size = 48  # per GPU\\n'
    """
    if batch < 1:
        raise BatchError(f"expected a batch size of at least 1, found {batch}")
    edit = Edit(site.path, site.start, site.end, site.text, write_number(site.text, batch))
    check = _check_python if site.path.endswith((".py", ".pyi")) else _check_setting
    check(text, edit.apply(text), site, edit)
    return edit


def _check_python(old: str, new: str, site: Site, edit: Edit) -> None:
    facts = read_facts(old, site.path)
    start = len(old[: site.start].encode("utf-8"))
    length = len(site.text.encode("utf-8"))
    node = next(
        (
            node
            for node, span in facts.spans.items()
            if span.start == start
            and span.length == length
            and isinstance(node, cst.BaseExpression)
        ),
        None,
    )
    replaced = node and facts.module.deep_replace(node, _rewritten(node, edit.new))
    if not isinstance(replaced, cst.Module) or replaced.code != new:
        raise _refusal(site)


def _rewritten(node: cst.BaseExpression, text: str) -> cst.BaseExpression:
    """The node with another text, in the parentheses that it stands in."""
    return cst.parse_expression(text).with_changes(lpar=node.lpar, rpar=node.rpar)


def _check_setting(old: str, new: str, site: Site, edit: Edit) -> None:
    """Where a parser is at hand, exactly one value must differ."""
    parse = _parser(site.path)
    if parse is None:
        return
    try:
        before, after = dict(_leaves(parse(old))), dict(_leaves(parse(new)))
    except Exception as error:
        raise BatchError(f"expected {site.path} to parse, found {error}", site.path) from error
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if len(changed) != 1 and edit.old != edit.new:
        raise _refusal(site)


def _refusal(site: Site) -> BatchError:
    return BatchError(
        f"expected to change {site.text} at {site.where} alone, found that more would change; "
        "edit it by hand",
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
    parse: Callable[[str], Any] = parser.loads if module == "tomllib" else parser.safe_load
    return parse


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in _leaves(one, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, one in enumerate(value) for leaf in _leaves(one, (*path, key))]
    return [(path, value)]
