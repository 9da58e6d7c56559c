"""Units of sharding: parameters that are gathered and dropped together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, simulate
from stepscope.whatif.parts.gradients import Gradients
from stepscope.whatif.parts.layers import outermost


@dataclass(frozen=True)
class Unit:
    """Parameters of a step that are gathered and dropped together.

    Attributes:
        tensors: number of tensors.
        bytes: of all of them.
        used: tasks.id of the first task that needs them in forward.
        begun: tasks.id of the first task that needs them in backward.
        ready: tasks.id of the tasks that complete their gradients, in order.
        stays: whether they stay gathered from forward to backward: those of no matching module.
    """

    tensors: int
    bytes: int
    used: int
    begun: int
    ready: Ids
    stays: bool = False


def units_of(
    graph: Graph, change: str, gradients: Gradients, step: int, glob: str, most: float
) -> Iterator[Unit]:
    """The units of a step in the order in which forward uses them.

    Args:
        graph: of training steps.
        change: the name of the change, for its errors.
        gradients: of the graph.
        step: the step.
        glob: for the paths of the modules that are units; empty for units by size.
        most: the size at which a unit is full, bytes.

    Raises:
        ChangeError: if the uses of the parameters are unknown, or no module matches.
    """
    simulation = simulate(graph)
    start, end = simulation.start_ns, simulation.end_ns
    rows = np.flatnonzero((gradients.step == step) & (gradients.used >= 0) & (gradients.begun >= 0))
    if not len(rows):
        raise ChangeError(
            f"{change}: the trace does not show where forward and backward use the parameters"
        )
    rows = rows[np.argsort(start[gradients.used[rows]], kind="stable")]
    key = _by_module(graph, change, gradients.take(rows), glob) if glob else _by_size(
        gradients.bytes[rows], most)  # fmt: skip
    _, order = np.unique(key, return_index=True)
    for first in np.sort(order).tolist():
        members = rows[key == key[first]]
        begun, ready = gradients.begun[members], gradients.ready[members]
        yield Unit(
            len(members), int(gradients.bytes[members].sum()), int(gradients.used[members[0]]),
            int(begun[np.argmin(start[begun])]), ready[np.argsort(end[ready], kind="stable")],
            stays=bool(key[first] < 0),
        )  # fmt: skip


def _by_size(size: Ids, most: float) -> Ids:
    number, room, result = -1, 0.0, []
    for bytes_ in size.tolist():
        if room <= 0:
            number, room = number + 1, most
        result.append(number)
        room -= bytes_
    return np.array(result, np.int64)


def _by_module(graph: Graph, change: str, gradients: Gradients, glob: str) -> Ids:
    """The outermost matching module around each parameter's module, or -1."""
    found = np.append(outermost(graph, glob), -1)[gradients.module]
    if (found < 0).all():
        raise ChangeError(f"{change}: no module with parameters matches {glob!r}")
    return found
