"""A what-if change: the function that predicts it, its parameters, and what is known about it.

Each file in `stepscope/models/whatif/changes` declares one as `CHANGE`; everything else (the list, the
tables in the documentation, `verify`, the page) is derived from these declarations.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from stepscope.errors import ChangeError, StepscopeError, name_hint
from stepscope.graph import Graph
from stepscope.models.memory.recorded_memory import RecordedMemory
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu

GROUPS = (
    "Compute",
    "Launches and waits",
    "Data loading",
    "Ranks of one job",
    "Distributed training",
    "Memory",
    "Anything",
)
"""The groups in which changes are listed, in order."""

_LARGEST = 1e6  # larger factors give times that a trace cannot hold
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_DESCRIBED = re.compile(r"^    ([\w, ]+): (.+(?:\n        .+)*)", re.MULTILINE)
_EXPECTED = {
    "float": "a number from 1e-6 to 1e6, or 0",
    "int": "a whole number up to 1e6",
    "bool": "true or false",
}


def _parsed(kind: str, text: str) -> Any:
    """The value of a parameter; raises ValueError for what `_EXPECTED` excludes."""
    if kind == "str":
        return text
    if kind == "bool":
        return _BOOLEANS[text.lower()]
    number = int(text) if kind == "int" else float(text)
    if number and not 1 / _LARGEST <= abs(number) <= _LARGEST:  # refuses nan, too
        raise ValueError(text)
    return number


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that the user can set."""

    name: str  # as in `CHANGE:NAME=VALUE`
    type: str  # `float`, `int`, `str` or `bool`
    default: Any  # None if the user has to give a value
    meaning: str  # what it sets


@dataclass(frozen=True)
class Application:
    """How `stepscope verify` makes a change to a running script.

    The code that does it is in `stepscope.record.applied`, since it runs in the user's process.
    """

    summary: str  # what happens to the script
    arguments: tuple[str, ...] = ()  # the parameters that this code takes
    # values of parameters that the user does not give
    defaults: Mapping[str, Any] = field(default_factory=dict)
    processes: bool = False  # whether the script runs in `workers` local processes


@dataclass(frozen=True)
class Change:
    """One change: a function from graph to graph, and what users need to know about it."""

    # takes a graph and its own parameters by name; raises ChangeError with the reason if it does
    # not apply. Its docstring is the documentation
    function: Callable[..., Graph]
    group: str = "Anything"  # one of `GROUPS`
    basis: str = ""  # where its numbers come from, in a few words
    assumptions: tuple[str, ...] = ()  # what has to hold for the prediction
    # what else has to hold on a device, given the graph: how it was calibrated
    evidence: Callable[[Graph], tuple[str, ...]] | None = None
    # values for parameters that the user does not give, given the graph
    choose: Callable[[Graph], Mapping[str, Any]] | None = None
    # parameters under which it gains least and most, for the range
    low: Mapping[str, Any] = field(default_factory=dict)
    high: Mapping[str, Any] = field(default_factory=dict)
    error: float = 0.0  # the largest relative error of such predictions that was measured, 0 if none was
    error_source: str = ""  # the paper that published that error; by default docs/evidence/accuracy.md
    # a smaller error, given the graph, where more is known
    error_of: Callable[[Graph], float] | None = None
    # how it is predicted where the CPU does the work, if the machine's calibration matters then
    on_cpu: CpuPrediction | None = None
    ranked: bool = True  # whether `--all` tries it: not if it needs parameters or cannot gain
    # whether a script can make it, so that the best combination may have it: it is no question
    # about other hardware or a cause
    makeable: bool = True
    excludes: tuple[str, ...] = ()  # names of changes that a script cannot have together with it
    one_rank: bool = False  # whether it applies to the step of a single rank only
    application: Application | None = None  # how `verify` makes it to a script, if it can
    only_measured: str = ""  # why `verify` measures it without a prediction on a CPU, if so
    order: int = 0  # of several changes those with the lowest number come first; equal ones as requested
    # its effect on the recorded allocations; takes them and the change's parameters, and returns
    # them changed. None where the effect on memory is not known
    memory: Callable[..., RecordedMemory] | None = None
    # the largest relative error of predicted peaks that were measured; None where none was
    memory_error: float | None = None

    @property
    def name(self) -> str:
        """The name that users type."""
        return self.function.__name__

    def rivals(self, other: "Change") -> bool:
        """Whether a script has either this change or the other one."""
        return other.name in (self.name, *self.excludes) or self.name in other.excludes

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return _doc(self.function).partition("\n")[0]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by name; a dataclass such as `Network` counts as its public fields."""
        declared: list[Parameter] = []
        meanings = _meanings(_doc(self.function))
        for name, given in _arguments(self.function).items():
            if is_dataclass(given.default):
                declared += _fields_as_parameters(given.default)
            else:
                default = None if given.default is inspect.Parameter.empty else given.default
                kind = _type_name(given.annotation, default)
                declared.append(Parameter(name, kind, default, meanings.get(name, "")))
        return {parameter.name: parameter for parameter in declared}

    @property
    def needed(self) -> list[str]:
        """The parameters without a default."""
        return [name for name, parameter in self.parameters.items() if parameter.default is None]

    def assumed(self, graph: Graph) -> tuple[str, ...]:
        """What has to hold for its prediction on this graph."""
        if self.on_cpu and self.on_cpu.assumptions and on_cpu(graph):
            return self.on_cpu.assumptions(graph)
        return (*self.assumptions, *(self.evidence(graph) if self.evidence else ()))

    def based_on(self, graph: Graph) -> str:
        """Where its numbers come from on this graph."""
        return self.on_cpu.based_on(graph, self.basis) if self.on_cpu and on_cpu(graph) else self.basis

    def error_on(self, graph: Graph) -> float:
        """The largest error of such predictions for a graph like this."""
        return self.error_of(graph) if self.error_of else self.error

    def reason(self, error: StepscopeError) -> str:
        """Why it does not apply, by the error that says so, without its name in front."""
        return str(error).removeprefix(f"{self.name}: ")

    def apply(self, graph: Graph, **values: Any) -> Graph:
        """The changed graph, with defaults for parameters without a value; raises ChangeError if
        the change does not apply, with the reason."""
        if self.one_rank and graph.window.rank < 0:
            raise ChangeError(f"{self.name}: predicted for one rank only; choose one")
        return self.function(graph, **_grouped(self.function, values)).check()


@dataclass(frozen=True)
class Request:
    """A change with the parameters that the user gave."""

    change: Change
    values: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, graph: Graph, defaults: Mapping[str, Any] | None = None) -> Graph:
        """The changed graph; `defaults` are for parameters that the user did not give; raises
        ChangeError if the change does not apply, with the reason."""
        return self.change.apply(graph, **{**(defaults or {}), **self.values})

    def refusal(self, graph: Graph) -> StepscopeError | None:
        """Why the change does not apply to a graph; None if it does."""
        try:
            self.apply(graph)
        except StepscopeError as error:
            return error
        return None

    def chosen(self, graph: Graph) -> "Request":
        """The request with the values that the change chooses for a graph."""
        if self.change.choose is None:
            return self
        return Request(self.change, {**self.change.choose(graph), **self.values})

    def __str__(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.change.name}:{values}" if values else self.change.name


def parse_request(text: str, changes: Mapping[str, Change]) -> Request:
    """Parse a request such as `bandwidth:factor=2`; raises ChangeError if there is no such change or
    parameter, or a value has the wrong type."""
    name, _, rest = text.partition(":")
    if name not in changes:
        raise ChangeError(f"there is no change {name!r}; {name_hint(name, changes)}")
    change = changes[name]
    values = dict(_value(change, part) for part in rest.split(",") if part)
    if missing := [parameter for parameter in change.needed if parameter not in values]:
        raise ChangeError(f"{name} needs {' and '.join(missing)}: {name}:{missing[0]}=…")
    return Request(change, values)


def _value(change: Change, part: str) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if key not in change.parameters or not equals:
        listed = ", ".join(change.parameters) or "none"
        raise ChangeError(f"{change.name}: expected KEY=VALUE with KEY one of {listed}, found {part!r}")
    kind = change.parameters[key].type
    if kind not in ("str", *_EXPECTED):
        known = f"{', '.join(_EXPECTED)} or str"
        raise ChangeError(f"{change.name}: expected the type of {key} to be {known}, found {kind}")
    try:
        return key, _parsed(kind, text)
    except (KeyError, ValueError):
        raise ChangeError(f"{change.name}: expected {key} to be {_EXPECTED[kind]}, found {text!r}") from None


def _arguments(function: Callable[..., Graph]) -> dict[str, inspect.Parameter]:
    given = list(inspect.signature(function).parameters.values())[1:]
    return {one.name: one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def _type_name(annotation: Any, default: Any = None) -> str:
    """As annotated, which is text where a module postpones that; else the type of the default."""
    if annotation is inspect.Parameter.empty:
        annotation = float if default is None else type(default)
    return str(getattr(annotation, "__name__", annotation))


def _fields_as_parameters(default: Any) -> list[Parameter]:
    meanings = _meanings(_doc(type(default)))
    return [
        Parameter(name, _type_name(column.type), getattr(default, name), meanings.get(name, ""))
        for name, column in _public_fields(default).items()
    ]


def _public_fields(default: Any) -> dict[str, Field[Any]]:
    return {column.name: column for column in fields(default) if column.metadata.get("parameter", True)}


def _grouped(function: Callable[..., Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the function takes them: those of a dataclass's fields in an instance of it."""
    result, rest = {}, dict(values)
    for name, given in _arguments(function).items():
        if is_dataclass(given.default) and not isinstance(given.default, type):
            own = {field: rest.pop(field) for field in _public_fields(given.default) if field in rest}
            result[name] = replace(given.default, **own)
    return {**result, **rest}


def _doc(documented: Any) -> str:
    return inspect.getdoc(documented) or ""


def _meanings(doc: str) -> dict[str, str]:
    section = re.split(r"(?:Args|Attributes):\n", doc)[-1].partition("\n\n")[0]
    return {
        name.strip(): " ".join(line.strip() for line in text.split("\n"))
        for names, text in _DESCRIBED.findall(section)
        for name in names.split(",")
    }
