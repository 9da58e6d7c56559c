"""What a what-if change is: a plain function Graph -> Graph, and what to know of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.errors import ChangeError
from stepscope.graph import Graph

_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_MOST = 1e6  # beyond it a time would be none that a trace can hold


def _bool(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError(text)
    return _WORDS[text.lower()]


def _number(text: str) -> float:
    number = float(text)
    if number and not 1 / _MOST <= abs(number) <= _MOST:  # nan neither
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    if abs(number := int(text)) > _MOST:
        raise ValueError(text)
    return number


_READ: dict[str, Callable[[str], Any]] = {
    "float": _number, "int": _whole, "str": str, "bool": _bool,
}  # fmt: skip
_READ_AS = {
    "float": "a number from 1e-6 to 1e6, or 0", "int": "a whole number up to 1e6",
    "bool": "true or false",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One entry of the list of changes.

    Attributes:
        function: takes a graph and its own parameters by name; raises ChangeError with the reason
            where it does not apply.
        assumptions: what has to hold for the prediction.
        low, high: parameters under which it gains least and most, for the range.
        error: the greatest relative error of such predictions that was published, by others or in
            docs/accuracy.md, or 0.
        on_cpu: what has to hold instead, given the graph, where a CPU's operators are the work.
        ranked: whether `--rank` tries it: not what needs parameters, or cannot gain.
        one_rank: whether it looks at one rank's step alone.
    """

    function: Callable[..., Graph]
    assumptions: tuple[str, ...]
    low: Mapping[str, Any] = field(default_factory=dict)
    high: Mapping[str, Any] = field(default_factory=dict)
    error: float = 0.0
    on_cpu: Callable[[Graph], tuple[str, ...]] | None = None
    ranked: bool = True
    one_rank: bool = False

    @property
    def name(self) -> str:
        """The name to call it by."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """The first line of what it says of itself."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def assumed(self, graph: Graph) -> tuple[str, ...]:
        """What has to hold for its prediction on this graph."""
        if self.on_cpu is None or graph.on_device.any():
            return self.assumptions
        return self.on_cpu(graph)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its parameters but the graph."""
        return dict(list(inspect.signature(self.function).parameters.items())[1:])


@dataclass(frozen=True)
class Request:
    """A change with the parameters that the user gave."""

    change: Change
    values: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, graph: Graph, otherwise: Mapping[str, Any] | None = None) -> Graph:
        """The changed graph; `otherwise` holds for parameters that the user did not give.

        Raises:
            ChangeError: if the change does not apply, with the reason.
        """
        if self.change.one_rank and graph.window.rank < 0:
            raise ChangeError(f"{self.change.name}: is predicted for one rank; choose it with "
                              "--of-rank")  # fmt: skip
        return self.change.function(graph, **{**(otherwise or {}), **self.values}).check()

    def __str__(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.change.name}:{values}" if values else self.change.name


def parse_request(text: str, known: Mapping[str, Change]) -> Request:
    """A request from text as `bandwidth:factor=2`.

    Raises:
        ChangeError: if there is no such change or parameter, or a value is of another type.
    """
    name, _, rest = text.partition(":")
    if name not in known:
        raise ChangeError(f"no change is called {name!r}; there are {', '.join(known)}")
    change = known[name]
    values = dict(_value(change, part) for part in rest.split(",") if part)
    missing = [
        key
        for key, parameter in change.parameters.items()
        if parameter.default is inspect.Parameter.empty and key not in values
    ]
    if missing:
        raise ChangeError(f"{name} needs {' and '.join(missing)}: {name}:{missing[0]}=…")
    return Request(change, values)


def _value(change: Change, part: str) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if key not in change.parameters or not equals:
        listed = ", ".join(change.parameters) or "none"
        raise ChangeError(f"{change.name}: expected KEY=VALUE with KEY one of {listed}, "
                          f"found {part!r}")  # fmt: skip
    kind = str(change.parameters[key].annotation)
    try:
        return key, _READ[kind](text)
    except ValueError:
        raise ChangeError(f"{change.name}: expected {key} as {_READ_AS[kind]}, "
                          f"found {text!r}") from None  # fmt: skip
