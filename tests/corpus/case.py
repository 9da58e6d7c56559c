"""A trace with a planted defect, or a clean one, and its truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from builder import Builder
from steps import Model

from stepscope.trace.trace import Trace

DEVICES = ("cuda", "rocm")
ALL = ("cuda", "rocm", "cpu")


@dataclass(frozen=True)
class Case:
    """A trace and its truth.

    Attributes:
        kind: what was planted, or which clean step it is.
        flavor: `cuda`, `rocm`, `cpu` or `jax`.
        build: draws the trace.
        rules: any of these must report it; none for a clean step.
        shows: a pattern in the finding's sentences or evidence.
    """

    kind: str
    flavor: str
    build: Callable[[Builder], dict[str, Any] | None]
    rules: tuple[str, ...] = ()
    shows: str = ""

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"{self.kind}-{self.flavor}"

    def trace(self, seed: int = 0) -> Trace:
        """The trace, drawn."""
        builder = Builder(self.flavor, seed)
        return builder.trace(**(self.build(builder) or {}))


def planted(**changes: Any) -> Callable[[Builder], None]:
    """A step of a model with these changes."""

    def build(b: Builder) -> None:
        Model(**changes).run(b)

    return build


def on(
    flavors: tuple[str, ...],
    kind: str,
    build: Callable[[Builder], Any],
    rules: str | tuple[str, ...] = (),
    shows: str = "",
) -> Iterator[Case]:
    """The case on each kind of device."""
    names = (rules,) if isinstance(rules, str) else rules
    for flavor in flavors:
        yield Case(kind, flavor, build, names, shows)
