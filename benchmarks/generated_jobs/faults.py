"""Faults to plant in a job, and what a correct answer names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stepscope.base.arrays import Mask

KINDS = ("healthy", "slow_node", "slow_device", "loader_stall", "slow_link", "imbalanced_expert")
# Faults that come and go, grow, or overlap.
FURTHER = (
    "slow_in_the_middle",
    "throttling",
    "throttled_node",
    "gc_pauses",
    "pauses_of_one",
    "slow_storage",
    "slow_cpu",
    "brief_hiccups",
    "two_faults",
    "half_of_the_nodes",
)
# Planted after the rules were written, with their truth, before any of their answers was seen.
BLIND = ("slow_nic", "throttles_midway", "node_storage", "gc_of_some", "uneven_last_stage", "one_way_link")
RANKS_PER_NODE = 8
COMPUTING = ("forward", "backward", "optimizer", "loss", "other", "zero_grad")
_FACTORS = {
    "slow_node": 1.25,
    "slow_device": 1.5,
    "loader_stall": 60.0,
    "slow_link": 6.0,
    "imbalanced_expert": 2.5,
    "slow_in_the_middle": 1.5,
    "throttling": 1.8,
    "throttled_node": 1.6,
    "gc_pauses": 2.5,
    "pauses_of_one": 2.5,
    "slow_storage": 60.0,
    "slow_cpu": 1.5,
    "brief_hiccups": 2.5,
    "half_of_the_nodes": 1.25,
    "slow_nic": 5.0,
    "throttles_midway": 1.6,
    "node_storage": 50.0,
    "gc_of_some": 2.5,
}
_WORK = {  # the classes of work, see `job`, that take longer
    "slow_node": ("busy", "host", "expert"),
    "slow_device": ("busy", "expert"),
    "loader_stall": ("loading",),
    "imbalanced_expert": ("expert",),
    "slow_in_the_middle": ("busy", "expert"),
    "throttling": ("busy", "expert"),
    "throttled_node": ("busy", "expert"),
    "gc_pauses": ("host",),
    "pauses_of_one": ("host",),
    "slow_storage": ("loading",),
    "slow_cpu": ("host",),
    "brief_hiccups": ("host",),
    "half_of_the_nodes": ("busy", "host", "expert"),
    "throttles_midway": ("busy", "expert"),
    "node_storage": ("loading",),
    "gc_of_some": ("host",),
}


@dataclass(frozen=True)
class Fault:
    """A fault and its truth.

    Attributes:
        kind: one of `KINDS`, `FURTHER` or `BLIND`.
        ranks: which ranks are at fault; of a slow link, those of both machines.
        stages: stages that may be named; empty for any.
        steps: the first and the last step (-1: of the job), None for all.
        cause: a part of the sentence.
        factor: how much longer the work or the transfer takes.
        period: every how many steps, else 0.
        grows: from step to step, up to the factor.
        each: in this share of the steps, drawn for each rank, else 0.
        ramp: it reaches its factor after so many steps, and stays there.
        together: the steps are drawn for all its ranks at once.
        is_finding: whether something is to be named.
        loose: steps by which the named ones may be off, as where a fault grows from nothing.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    cause: str = ""
    factor: float = 1.0
    period: int = 0
    grows: bool = False
    each: float = 0.0
    ramp: int = 0
    together: bool = False
    is_finding: bool = True
    loose: int = 0

    @property
    def is_of_nodes(self) -> bool:
        """Whether it concerns several machines, each of which may be a finding."""
        return self.kind == "half_of_the_nodes"

    def span(self, steps: int) -> tuple[int, int]:
        """The first and the last step, of a job of so many."""
        first, last = self.steps or (0, -1)
        return first, steps - 1 if last < 0 else last

    @property
    def work(self) -> tuple[str, ...]:
        """The classes of work that take longer."""
        return _WORK.get(self.kind, ())

    def to_json(self) -> dict[str, Any]:
        """The truth, for a file next to the job."""
        return asdict(self)


def as_drawn(fault: Fault, slow: Mask) -> Fault:
    """A fault whose steps are drawn, with the ranks and steps that were.

    What happens once to a rank is chance, and so is what happens to a few ranks, once to each.

    Args:
        fault: as planted.
        slow: which ranks are slow in which steps, shape (ranks, steps).
    """
    if not fault.is_finding or not slow.any():
        return replace(fault, is_finding=False)
    ranks, steps = (np.flatnonzero(slow.any(axis=axis)).tolist() for axis in (1, 0))
    together = fault.together or bool(fault.period)
    often = len(steps) > 1 if len(fault.ranks) == 1 else len(ranks) >= max(4, len(slow) / 5)
    return replace(
        fault,
        ranks=tuple(ranks),
        steps=(steps[0], steps[-1]),
        loose=0,
        period=fault.period if len(steps) > 2 else 0,
        cause=fault.cause if len(steps) > 2 or fault.cause != "every 10th step" else "late",
        is_finding=together or (often and int(slow.sum(axis=1).max()) > 1),
    )


HEALTHY = Fault("healthy", is_finding=False)


def faults(kind: str, number: int, ranks: int, steps: Sequence[int] = (20, 40)) -> tuple[Fault, ...]:
    """The faults of a job: of `two_faults` a slow device and a loader that stalls elsewhere."""
    if kind == "healthy":
        return ()
    if kind != "two_faults":
        return (fault(kind, number, ranks, steps),)
    first = fault("slow_device", number, ranks)
    return first, fault("loader_stall", number + ranks // 3, ranks, steps)


def fault(kind: str, number: int, ranks: int, steps: Sequence[int] = (20, 40)) -> Fault:
    """The `number`-th fault of a kind in a job of `ranks` ranks; `steps` are those of a stall."""
    nodes = max(ranks // RANKS_PER_NODE, 1)
    node, rank = of_nodes(number % nodes), ((number * 7 + 3) % ranks,)
    pair = 2 * (number % max(nodes // 2, 1))
    first, last = steps
    planted = {
        "slow_node": Fault(kind, node, (*COMPUTING, "host")),
        "slow_device": Fault(kind, rank, COMPUTING, cause="slower device"),
        "loader_stall": Fault(kind, rank, ("data_loading",), (first, last), "batches arrive late"),
        "slow_link": Fault(kind, of_nodes(pair, pair + 1), ("communication",), cause="link"),
        "imbalanced_expert": Fault(kind, rank, COMPUTING, cause="imbalanced expert"),
        "slow_in_the_middle": Fault(kind, rank, COMPUTING, (first, -1), "slower device"),
        "throttling": Fault(
            kind, rank, COMPUTING, (first, -1), "more from step to step", grows=True, loose=3
        ),
        "throttled_node": Fault(
            kind, node, COMPUTING, (first, -1), "more from step to step", grows=True, loose=3
        ),
        "gc_pauses": Fault(kind, tuple(range(ranks)), ("host",), (0, -1), "pauses", each=0.1, loose=6),
        "pauses_of_one": Fault(kind, rank, ("host",), (0, -1), each=0.25, loose=12),
        "slow_storage": Fault(
            kind, node, ("data_loading",), (number % 10, -1), "every 10th step", period=10, loose=9
        ),
        "slow_cpu": Fault(kind, rank, ("host",), cause="CPU"),
        "brief_hiccups": Fault(kind, tuple(range(ranks)), each=0.004, is_finding=False),
        "slow_nic": Fault(
            kind, tuple(sorted((rank[0], rank[0] ^ RANKS_PER_NODE))), ("communication",), cause="link"
        ),
        "throttles_midway": Fault(kind, rank, COMPUTING, (first, -1), "slower device", ramp=4, loose=5),
        "node_storage": Fault(
            kind, node, ("data_loading",), (0, -1), "batches arrive late", each=0.3, together=True, loose=10
        ),
        "gc_of_some": Fault(
            kind, tuple(range(number % 3, ranks, 3)), ("host",), (0, -1), each=0.15, loose=12
        ),
        "half_of_the_nodes": Fault(kind, tuple(range(ranks // 2)), (*COMPUTING, "host")),
    }
    return replace(planted.get(kind, HEALTHY), factor=_FACTORS.get(kind, 1.0))


def of_nodes(*nodes: int) -> tuple[int, ...]:
    """The ranks of machines."""
    return tuple(rank for node in nodes for rank in range(RANKS_PER_NODE * node, RANKS_PER_NODE * (node + 1)))
