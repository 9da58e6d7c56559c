"""Which changes can be verified, and with which parameters they are applied and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.calibration import find_calibration
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif import CHANGES, Request, parse_request
from stepscope.whatif.calibrated import on_cpu

# By change: what applying it takes of its parameters, and the values of those not given.
_APPLIED: dict[str, dict[str, Any]] = {
    "amp": {},
    "fused_optimizer": {},
    "dataloader": {"workers": 2},
    "ddp": {},
    "zero": {},
    "fsdp": {"unit": ""},
    "compress": {},
    "compile": {},
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "dataloader": {"workers": 2},
    "ddp": {"workers": 2},
    "zero": {"workers": 2, "stage": 1, "by": "torch"},
    "fsdp": {"workers": 2},
}
_TOGETHER = ("ddp", "zero", "fsdp")
_NO_PREDICTION = {
    "compile": "what a compiler makes of a model is not predicted; it is only measured",
}


@dataclass(frozen=True)
class Wish:
    """A change to verify.

    Attributes:
        text: as it was asked for.
        name: of the change.
        applied: parameters for applying it.
        request: for predicting it; None where nothing predicts it.
    """

    text: str
    name: str
    applied: Mapping[str, Any]
    request: Request | None

    @property
    def processes(self) -> int:
        """How many processes it trains in."""
        if self.request is None or self.name not in _TOGETHER:
            return 1
        return int(self.request.values["workers"])

    @property
    def reason(self) -> str | None:
        """Why nothing predicts it."""
        return _NO_PREDICTION.get(self.name)

    def requests(self, graph: Graph) -> tuple[Request, ...]:
        """What predicts it on this machine, where all processes share the cores."""
        if self.request is None or self.name not in _TOGETHER or not on_cpu(graph):
            return () if self.request is None else (self.request,)
        values = {**_loopback(graph), **self.request.values}
        shared = Request(CHANGES["shared_cores"], {"processes": self.processes})
        return Request(self.request.change, values), shared


def requests_of(wishes: Sequence[Wish], graph: Graph) -> tuple[Request, ...]:
    """What predicts several changes together: the cores are shared by what all of them leave."""
    every = [request for wish in wishes for request in wish.requests(graph)]
    return tuple(sorted(every, key=lambda one: one.change.name == "shared_cores"))


def _loopback(graph: Graph) -> dict[str, float]:
    """The network within this machine, as calibrated.

    Source: the time of a ring of two, `stepscope.whatif.network`: bytes over the bandwidth, and two
    latencies.
    """
    calibration = find_calibration(graph.trace.metadata)
    if calibration is None or not calibration.reducing:
        return {}
    rows = [(row[0], row[1]) for row in calibration.reducing]
    (_, short_ns), (size, long_ns) = min(rows), max(rows)
    return {
        "bandwidth_gbps": round(size * 8 / max(long_ns - short_ns, 1.0), 3),
        "latency_us": round(short_ns / 2e3, 1),
    }


def parse_wishes(text: str) -> tuple[Wish, ...]:
    """Changes from text as `amp`, `dataloader:workers=4` or `amp+fused_optimizer`.

    Raises:
        ChangeError: if there is no such change or parameter, or PyTorch cannot make it by itself.
    """
    return tuple(_wish(part) for part in text.split("+"))


def _wish(text: str) -> Wish:
    name, colon, _ = text.partition(":")
    if name not in _APPLIED:
        raise ChangeError(f"expected a change that PyTorch can make to any script, one of "
                          f"{', '.join(_APPLIED)}; found {name!r}")  # fmt: skip
    if name in _NO_PREDICTION:
        if colon:
            raise ChangeError(f"{name} takes no parameters, found {text!r}")
        return Wish(text, name, {}, None)
    given = parse_request(text, CHANGES)
    values = {**_DEFAULTS.get(name, {}), **given.values}
    _refuse(name, values)
    applied = {key: values[key] for key in _APPLIED[name]}
    return Wish(text, name, applied, Request(given.change, values))


def _refuse(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what a change knows and PyTorch does not."""
    if name == "zero" and (values["stage"], values["by"]) != (1, "torch"):
        raise ChangeError("zero: PyTorch has stage 1, its ZeroRedundancyOptimizer; for stage 3 "
                          "verify fsdp")  # fmt: skip
    if name == "fsdp" and not values.get("unit"):
        raise ChangeError("fsdp: expected unit=GLOB, the modules whose parameters are gathered "
                          "together, as fsdp:unit=layers.*")  # fmt: skip
