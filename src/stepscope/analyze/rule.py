"""A rule: a function that searches the steps of a trace, measures, and yields findings."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject
from stepscope.errors import RuleError


@dataclass(frozen=True)
class Rule:
    """One entry of the list of rules.

    Attributes:
        function: takes the subject; yields what it finds. Its docstring says in the first line what
            it looks for, and in a paragraph that begins with `Silent` when it says nothing.

    Example:
        >>> def many_copies(subject):
        ...     '''Tensors are made contiguous again and again.'''
        ...     rows = subject.find(r"^aten::contiguous$", stage="forward")
        ...     if len(rows) > 100 * subject.count:
        ...         gain = subject.whatif("scale:select=name=aten::contiguous,factor=0")
        ...         yield subject.finding("Many copies.", "Keep one layout.", rows, gain)
        >>> RULES = [Rule(many_copies)]

    Source: DEEPCONTEXT section 4.3, "Analysis API": search, metrics, flag.
    """

    function: Callable[[Subject], Iterable[Finding]]

    @property
    def name(self) -> str:
        """The name that findings carry."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """What it looks for."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def silent(self) -> str:
        """When it says nothing, empty where it does not tell."""
        parts = (inspect.getdoc(self.function) or "").split("\n\n")
        found = (" ".join(part.split()) for part in parts if part.startswith("Silent"))
        return next(found, "")


def load_rules(path: str | Path) -> list[Rule]:
    """The list `RULES` of a Python file of the user's; this runs the file.

    Raises:
        RuleError: if it cannot be run, or has no such list.
    """
    try:
        found = runpy.run_path(str(path)).get("RULES")
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split())
        raise RuleError(f"{path}: cannot load rules: {type(error).__name__}: {told}") from error
    if not isinstance(found, list) or not all(isinstance(rule, Rule) for rule in found):
        raise RuleError(f"{path}: expected a list RULES of stepscope.analyze.Rule, "
                        f"found {type(found).__name__}")  # fmt: skip
    return found
