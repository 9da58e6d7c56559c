"""P3 (Jayarajan et al., MLSys 2019): gradients in slices, sent in the order of their next use.

Every worker is also a server, of an equal share of the bytes. A worker pushes a slice to its
server as soon as backward has made it; the server adds up the slices of all workers and sends the
average back. Of the slices that wait for the network, the one that forward needs first goes first.
The next step's forward waits, module by module, for the gradients of its own parameters, and
updates them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from benchmarks.networked.mesh import Mesh, Message
from torch import Tensor, nn

PUSH, PULL = 0, 1

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class _Slice:
    """A part of a parameter: its place, and what its server knows of this step."""

    parameter: int
    first: int
    last: int
    server: int = 0
    is_ready: bool = False
    added: int = 0
    early: list[Tensor] = field(default_factory=list)


class P3:
    """Averages the gradients of a model and updates its parameters before their next use.

    Args:
        model: called as before; its parameters are updated when its modules are called next.
        optimizer: makes the optimizer of a module's own parameters.
        mesh: connections to the other workers.
        slice_elements: the most elements of a slice; the paper's is 50,000.
    """

    def __init__(
        self, model: nn.Module, optimizer: MakeOptimizer, mesh: Mesh, slice_elements: int = 50_000
    ) -> None:
        self._mesh = mesh
        self._parameters: list[nn.Parameter] = []
        self._slices: list[_Slice] = []
        self._outstanding: list[int] = []
        self._slices_of: list[range] = []
        self._waiting: dict[nn.Module, list[int]] = {}
        self._optimizers: dict[nn.Module, torch.optim.Optimizer] = {}
        self._changed = threading.Condition()
        for module, own in _own_parameters(model):
            self._add_module(module, own, optimizer, slice_elements)
        self._choose_servers()
        mesh.start(self._room, self._received)

    def finish(self) -> None:
        """Wait for all gradients and update all parameters, as after the last step."""
        for module in self._optimizers:
            self._update(module)

    def _add_module(
        self, module: nn.Module, own: Sequence[nn.Parameter], optimizer: MakeOptimizer, most: int
    ) -> None:
        self._optimizers[module] = optimizer(own)
        self._waiting[module] = []
        for parameter in own:
            number, first = len(self._parameters), len(self._slices)
            size = parameter.numel()
            self._slices += [_Slice(number, at, min(at + most, size)) for at in range(0, size, most)]
            self._parameters.append(parameter)
            self._outstanding.append(0)
            self._slices_of.append(range(first, len(self._slices)))
            parameter.register_post_accumulate_grad_hook(
                lambda one, number=number, module=module: self._ready(number, module)
            )
        module.register_forward_pre_hook(lambda one, _: self._update(one))

    def _choose_servers(self) -> None:
        """Give each slice to the worker that serves least so far."""
        served = [0] * self._mesh.size
        for one in self._slices:
            one.server = served.index(min(served))
            served[one.server] += one.last - one.first

    # -- in the thread that trains

    def _ready(self, number: int, module: nn.Module) -> None:
        """A gradient is there: add its own slices, push the others to their servers."""
        with self._changed:
            self._outstanding[number] = len(self._slices_of[number])
        self._waiting[module].append(number)
        for index in self._slices_of[number]:
            server = self._slices[index].server
            if server == self._mesh.rank:
                self._add_own(index)
            else:
                self._send(PUSH, index, server)

    def _update(self, module: nn.Module) -> None:
        """Wait for the averages of a module's gradients, and update its parameters."""
        waiting, self._waiting[module] = self._waiting[module], []
        if not waiting:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._arrived(waiting))
        self._mesh.raise_failure()
        self._optimizers[module].step()
        self._optimizers[module].zero_grad()

    def _arrived(self, numbers: Sequence[int]) -> bool:
        return self._mesh.failure is not None or not any(self._outstanding[n] for n in numbers)

    # -- as a server

    def _add_own(self, index: int) -> None:
        one = self._slices[index]
        with self._changed:
            one.is_ready, early, one.early = True, one.early, []
        self._add(index, [*early, None])

    def _room(self, kind: int, index: int, count: int) -> Tensor:
        """Averages replace the own values, which the server has by then."""
        return self._values(index) if kind == PULL else torch.empty(count)

    def _received(self, kind: int, index: int, values: Tensor) -> None:
        """In a thread per other worker."""
        if kind == PULL:
            self._arrive(index)
            return
        one = self._slices[index]
        with self._changed:
            if not one.is_ready:
                one.early.append(values)
                return
        self._add(index, [values])

    def _add(self, index: int, values: Sequence[Tensor | None]) -> None:
        """Add others' slices to the own one (None); with the last of them, send the average."""
        one, sum_ = self._slices[index], self._values(index)
        with self._changed:
            for value in values:
                if value is not None:
                    sum_ += value
            one.added += len(values)
            if one.added < self._mesh.size:
                return
            one.added, one.is_ready = 0, False
            sum_ /= self._mesh.size
        for worker in range(self._mesh.size):
            if worker != self._mesh.rank:
                self._send(PULL, index, worker)
        self._arrive(index)

    # -- both

    def _send(self, kind: int, index: int, worker: int) -> None:
        self._mesh.send(Message(index, kind, worker, self._values(index)))

    def _arrive(self, index: int) -> None:
        with self._changed:
            number = self._slices[index].parameter
            self._outstanding[number] -= 1
            if not self._outstanding[number]:
                self._changed.notify_all()

    def _values(self, index: int) -> Tensor:
        one = self._slices[index]
        gradient = self._parameters[one.parameter].grad
        assert gradient is not None
        return gradient.view(-1)[one.first : one.last]


def _own_parameters(model: nn.Module) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """The modules with parameters of their own, as registered; a shared one counts once."""
    seen: set[int] = set()
    result = []
    for module in model.modules():
        own = [one for one in module.parameters(recurse=False) if id(one) not in seen]
        seen.update(map(id, own))
        if own:
            result.append((module, own))
    return result
