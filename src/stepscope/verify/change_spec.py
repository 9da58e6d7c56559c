"""The changes to verify: how each is applied to the script, and how it is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif import CHANGES, Change, Request, parse_request
from stepscope.whatif.change import Application
from stepscope.whatif.cpu.calibrated import loopback, on_cpu


@dataclass(frozen=True)
class ChangeSpec:
    """A change to verify.

    Attributes:
        text: as requested.
        change: the change.
        values: its parameters, defaults for `verify` included.
    """

    text: str
    change: Change
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the change."""
        return self.change.name

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameters for applying it."""
        return {name: self.values[name] for name in _application(self.change).arguments}

    @property
    def processes(self) -> int:
        """The number of processes of the script."""
        return int(self.values["workers"]) if _application(self.change).processes else 1

    @property
    def only_measured(self) -> str:
        """Why there is no prediction; empty if there is one."""
        return self.change.only_measured

    def requests(self, graph: Graph) -> tuple[Request, ...]:
        """The changes that predict it on this machine, where all processes share the cores."""
        if self.only_measured:
            return ()
        if self.processes < 2 or not on_cpu(graph):
            return (Request(self.change, self.values),)
        values = {**loopback(graph), **self.values}
        shared = Request(CHANGES["shared_cores"], {"processes": self.processes})
        return Request(self.change, values), shared


def verifiable_changes() -> dict[str, Change]:
    """The changes that `verify` can apply to a script, by name."""
    return {name: change for name, change in CHANGES.items() if change.application}


def parse_specs(text: str) -> tuple[ChangeSpec, ...]:
    """Parse changes such as `amp`, `dataloader:workers=4` or `amp+fused_optimizer`.

    Raises:
        ChangeError: if there is no such change or parameter, or PyTorch cannot apply it.
    """
    return tuple(_spec(part) for part in text.split("+"))


def requests_of(specs: Sequence[ChangeSpec], graph: Graph) -> tuple[Request, ...]:
    """The changes that predict several specs together; sharing the cores comes last."""
    requests = [request for spec in specs for request in spec.requests(graph)]
    return tuple(sorted(requests, key=lambda request: request.change.name == "shared_cores"))


def _spec(text: str) -> ChangeSpec:
    name, known = text.partition(":")[0], verifiable_changes()
    if name not in known:
        raise ChangeError(f"PyTorch cannot apply {name!r} to a script; choose one of "
                          f"{', '.join(known)}")  # fmt: skip
    change, application = known[name], _application(known[name])
    values = {**application.defaults, **parse_request(text, CHANGES).values}
    if application.check:
        application.check(values)
    return ChangeSpec(text, change, values)


def _application(change: Change) -> Application:
    return change.application or Application("")
