"""Faults to plant in a job, and what a correct answer names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("healthy", "slow_node", "slow_device", "loader_stall", "slow_link", "imbalanced_expert")
RANKS_PER_NODE = 8
_FACTORS = {
    "slow_node": 1.25, "slow_device": 1.5, "loader_stall": 60.0, "slow_link": 6.0,
    "imbalanced_expert": 2.5,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A fault and its truth.

    Attributes:
        kind: one of `KINDS`.
        ranks: which ranks are at fault; of a slow link, those of both machines.
        stages: stages that may be named; empty for any.
        steps: the first and the last step, None for all.
        cause: a part of the cause's text.
        factor: how much longer the work or the transfer takes.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    cause: str = ""
    factor: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """The truth, for a file next to the job."""
        return asdict(self)


HEALTHY = Fault("healthy")


def fault(kind: str, number: int, ranks: int, steps: Sequence[int] = (20, 40)) -> Fault:
    """The `number`-th fault of a kind in a job of `ranks` ranks; `steps` are those of a stall."""
    nodes = max(ranks // RANKS_PER_NODE, 1)
    node, rank = number % nodes, (number * 7 + 3) % ranks
    pair = 2 * (number % max(nodes // 2, 1))
    computing = ("forward", "backward", "optimizer", "loss", "other", "zero_grad")
    factor = _FACTORS.get(kind, 1.0)
    if kind == "slow_node":
        return Fault(kind, of_nodes(node), (*computing, "host"), None, "", factor)
    if kind == "slow_device":
        return Fault(kind, (rank,), computing, None, "slower device", factor)
    if kind == "loader_stall":
        span = (steps[0], steps[1])
        return Fault(kind, (rank,), ("data_loading",), span, "batches arrive late", factor)
    if kind == "slow_link":
        return Fault(kind, of_nodes(pair, pair + 1), ("communication",), None, "link", factor)
    if kind == "imbalanced_expert":
        return Fault(kind, (rank,), computing, None, "imbalanced expert", factor)
    return HEALTHY


def of_nodes(*nodes: int) -> tuple[int, ...]:
    """The ranks of machines."""
    return tuple(
        rank for node in nodes
        for rank in range(RANKS_PER_NODE * node, RANKS_PER_NODE * (node + 1))
    )  # fmt: skip
