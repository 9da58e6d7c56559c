"""Which parameters of a model are gathered and dropped together, where they are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, simulate
from stepscope.whatif.gradients import Gradients
from stepscope.whatif.layers import outermost

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Unit:
    """Parameters of a step that are gathered and dropped together.

    Attributes:
        tensors: how many there are.
        bytes: of all of them.
        used: tasks.id of the first task that needs them in forward, and
        begun: in backward.
        ready: tasks.id of the tasks with which their gradients are there, the last of them last.
        stays: whether they are kept from forward to backward: those of no module that is a unit.
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
        change: for whom, as a refusal says it.
        gradients: of the graph.
        step: of which step.
        glob: on the paths of the modules that are units; empty for units by size.
        most: the size with which a unit is full, bytes.

    Raises:
        ChangeError: if it is not known where the parameters are used, or no module matches.
    """
    simulation = simulate(graph)
    start, end = simulation.start_ns, simulation.end_ns
    rows = np.flatnonzero((gradients.step == step) & (gradients.used >= 0) & (gradients.begun >= 0))
    if not len(rows):
        raise ChangeError(f"{change}: where forward and backward use the parameters is not known")
    rows = rows[np.argsort(start[gradients.used[rows]], kind="stable")]
    key = _by_module(graph, change, gradients.take(rows), glob) if glob else _by_size(
        gradients.bytes[rows], most)  # fmt: skip
    _, order = np.unique(key, return_index=True)
    for first in np.sort(order).tolist():
        mine = rows[key == key[first]]
        begun, ready = gradients.begun[mine], gradients.ready[mine]
        yield Unit(
            len(mine), int(gradients.bytes[mine].sum()), int(gradients.used[mine[0]]),
            int(begun[np.argmin(start[begun])]), ready[np.argsort(end[ready], kind="stable")],
            stays=bool(key[first] < 0),
        )  # fmt: skip


def _by_size(size: Ids, most: float) -> Ids:
    number, room, result = -1, 0.0, []
    for one in size.tolist():
        if room <= 0:
            number, room = number + 1, most
        result.append(number)
        room -= one
    return np.array(result, np.int64)


def _by_module(graph: Graph, change: str, gradients: Gradients, glob: str) -> Ids:
    """The outermost module that matches, around each parameter's; -1 for the rest."""
    found = np.append(outermost(graph, glob), -1)[gradients.module]
    if (found < 0).all():
        raise ChangeError(f"{change}: no module with parameters matches {glob!r}")
    return found
