"""A rule: a function that searches the steps of a trace, measures, and yields findings."""

import inspect
import pkgutil
import runpy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from stepscope.analyze import rules
from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.input_files import content_of
from stepscope.base.plugins import plugins
from stepscope.errors import RuleError, failure


@dataclass(frozen=True)
class Rule:
    """A rule.

    Example:
        >>> def many_copies(context):
        ...     '''Tensors that are made contiguous repeatedly.'''
        ...     rows = context.search.find(r"^aten::contiguous$", stage="forward")
        ...     if context.measures.calls(rows) > 100:
        ...         gain = context.gains.whatif("scale:select=name=aten::contiguous,factor=0")
        ...         yield context.finding("Many copies.", "Keep one layout.", rows, gain)
        >>> RULES = [Rule(many_copies)]

    Source: DEEPCONTEXT section 4.3, "Analysis API": search, metrics, flag.
    """

    # takes a `RuleContext` and yields findings. The first line of its docstring states what the
    # rule looks for; a paragraph that begins with `Silent` states when it reports nothing
    function: Callable[[RuleContext], Iterable[Finding]]
    cause: str = ""  # findings of rules of one cause are shown together; by default a rule has its own
    explains: tuple[str, ...] = ()  # what bounds a step (`summary.verdict`) that this rule explains
    fallback: bool = False  # whether it applies only if no other finding explains what bounds the step
    notice: bool = False  # whether it is worth showing without a gain

    @property
    def name(self) -> str:
        """The name of the rule, which its findings carry."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """What the rule looks for."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def silent(self) -> str:
        """When the rule reports nothing; empty if not documented."""
        parts = (inspect.getdoc(self.function) or "").split("\n\n")
        return next((" ".join(part.split()) for part in parts if part.startswith("Silent")), "")


def discover_rules() -> list[Rule]:
    """The rules of `stepscope.analyze.rules`, by name; then those of other packages.

    A module declares the function of its own name; its constants `CAUSE`, `EXPLAINS`, `FALLBACK`
    and `NOTICE` set what the rule's attributes of these names are. Other packages add rules by an
    entry point of the group `stepscope.rules`; none replaces a built-in one.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(rules.__path__))
    built_in = [_declared_in(import_module(f"{rules.__name__}.{name}"), name) for name in names]
    return built_in + [rule for rule in plugins("rules", Rule) if rule.name not in names]


def _declared_in(module: ModuleType, name: str) -> Rule:
    return Rule(
        getattr(module, name),
        cause=getattr(module, "CAUSE", ""),
        explains=getattr(module, "EXPLAINS", ()),
        fallback=getattr(module, "FALLBACK", False),
        notice=getattr(module, "NOTICE", False),
    )


def load_rules(path: str | Path) -> list[Rule]:
    """The list `RULES` of a Python file. This runs the file; raises RuleError if that fails, or it
    has no such list."""
    try:
        found = runpy.run_path(str(path)).get("RULES") if content_of(path) else None
    except BaseException as error:
        raise RuleError(f"{path}: cannot load rules: {failure(error)}") from error
    if not isinstance(found, list) or not all(isinstance(rule, Rule) for rule in found):
        raise RuleError(
            f"{path}: expected a list RULES of stepscope.analyze.Rule, found {type(found).__name__}"
        )
    return found
